/** The client: sends a turn once, follows it to its end, and survives whatever happens in between. */
import { type Lifecycle } from "./lifecycle.ts";
import type { Sleep } from "./means.ts";
import { type Timing } from "./policy.ts";
import { type Json, type SessionState } from "./reducer.ts";
import { Run } from "./run.ts";
import { type Storage } from "./store.ts";
import type { Sharing } from "./tabs.ts";
import { type Fetch, type Token } from "./wire.ts";
export interface TurnOptions {
    readonly turn?: string;
    readonly agent?: string;
    readonly if_active?: "reject" | "interrupt";
    readonly retry_of?: string;
}
/** Whatever is left out is the platform's own: `sessionStorage`, the page's events, the browser's locks. */
export interface Options {
    /** Whose sessions these are, such as a user's id. Tabs share what they follow when they name the same one. */
    readonly principal?: string;
    readonly fetch?: Fetch;
    readonly storage?: Storage;
    readonly lifecycle?: Lifecycle;
    readonly sharing?: Sharing | undefined;
    readonly timing?: Partial<Timing>;
    /** False where `fetch` gives an answer when it is whole, as in React Native: the long poll is used. */
    readonly streams?: boolean;
    /** Bounds one frame, in characters; a larger one breaks its stream. */
    readonly maxBytes?: number;
    readonly clock?: () => number;
    readonly sleep?: Sleep;
    readonly chance?: () => number;
    readonly newTurn?: () => string;
}
/** A caller of one service. Requests outside a turn reject with LegatoError, or with Broken where the network fails. */
export declare class LegatoClient {
    #private;
    constructor(baseUrl: string, token: Token, options?: Options);
    /** A new turn, sent when the run is iterated. */
    turn(session: string, input: Json, options?: TurnOptions): Run;
    /** The turn whose end this client has not seen: sent by it, or running as far as it knows. */
    unfinished(session: string): Promise<string | undefined>;
    /** Goes on with a turn, by default the unfinished one; iterating throws `not_found` when there is none. */
    resume(session: string, turn?: string): Run;
    /** Everything that happens in a session, turn after turn, until the caller leaves. */
    follow(session: string): Run;
    /** The session with its newest turns, or an older page of them. */
    snapshot(session: string, before?: number): Promise<SessionState>;
    /** The caller's sessions, newest first, each as the service's JSON; `before` of one page asks for the next. */
    sessions(before?: string): Promise<{
        sessions: any[];
        before: string | null;
    }>;
    /** Asks the turn's owner to stop, again and again until that is heard; whoever follows the turn sees it end. */
    cancel(session: string, turn: string, reason?: string): Promise<void>;
    /** Answers a question of a turn, again and again until that is heard; the runs of the turn here go on at once.
     * The first decision counts: rejects with `already_decided` when that was another one. */
    decide(session: string, turn: string, request: string, approved: boolean, note?: string): Promise<void>;
    /** Gives a turn the credential that it waits for, for `expiresIn` seconds, again and again until that is heard. Rejects
     * with `already_decided` when it is asked for no more. */
    supply(session: string, turn: string, name: string, value: string, expiresIn?: number): Promise<void>;
    /** Deletes the session there and what is kept of it here. */
    delete(session: string): Promise<void>;
    /** Lets go of all connections; the turns run on. */
    close(): void;
}
