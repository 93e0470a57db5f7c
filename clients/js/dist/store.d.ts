/** What a client keeps so that a reload costs it nothing: one entry a session, written whole. */
import { type SessionState } from "./reducer.ts";
/** A turn as it is sent, again and again under the same id. `body` is the JSON. */
export interface Sent {
    readonly turn: string;
    readonly body: {
        readonly [name: string]: any;
    };
}
/** Cursor and state as one value; `sent`, written before it is sent, is the turn whose end is not seen yet. */
export interface Saved {
    readonly state: SessionState;
    readonly sent: Sent | null;
}
type Maybe<T> = T | Promise<T>;
/** `sessionStorage`, or what React Native has in its place. */
export interface Storage {
    getItem(key: string): Maybe<string | null>;
    setItem(key: string, value: string): Maybe<unknown>;
    removeItem(key: string): Maybe<unknown>;
}
/** Entries are kept in memory too: a storage that is full, or not there, costs the reload and nothing else. */
export declare class Keep {
    #private;
    constructor(storage: Storage | undefined, principal: string, clock: () => number);
    load(session: string): Promise<Saved>;
    /** Changes what is kept, at once; `now`: it is written before this returns. */
    change(session: string, change: (saved: Saved) => Saved, now: boolean): Promise<void>;
    flush(): Promise<void>;
    forget(session: string): Promise<void>;
}
export {};
