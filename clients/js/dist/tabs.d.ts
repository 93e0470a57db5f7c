/**
 * One connection for all tabs that show a session: the one that holds the session's lock leads and tells the others.
 *
 * A tab that closes lets go of its lock, and the next one leads. Who has heard nothing for `stale` seconds asks; a
 * leader that does not answer within `tab` seconds is frozen, and loses its lock to a tab that is seen. Everybody
 * reduces what is told, so a new leader goes on from its own cursor: nothing is missed, and nothing counts twice.
 */
import type { Means } from "./means.ts";
/** What a browser's BroadcastChannel is here. */
export interface Channel {
    onmessage: ((message: any) => void) | null;
    postMessage(data: unknown): void;
    close(): void;
}
export interface Locks {
    request(name: string, options: {
        signal?: AbortSignal;
        steal?: boolean;
    }, held: () => Promise<void>): Promise<unknown>;
}
export interface Sharing {
    readonly locks: Locks;
    readonly channel: (name: string) => Channel;
}
/** A tab's part. `lead` follows the session until its signal is aborted; `answer` is what the leader says to who has
 * that cursor; `weak`: it leads badly, for it is hidden and its line is down. */
export interface Member {
    lead(signal: AbortSignal): Promise<void>;
    heard(told: any): void;
    hurried(): void;
    answer(cursor: string): object;
    cursor(): string;
    weak(): boolean;
}
/** The browser's own, where it has both. */
export declare function ownSharing(): Sharing | undefined;
export declare class Tabs {
    #private;
    constructor(means: Means, sharing: Sharing, name: string, member: Member);
    tell(told: object): void;
    /** What the session waits for has come, says whoever brought it. */
    hurry(): void;
    ask(): void;
    /** The page is back: is the leader there? */
    wake(): void;
    close(): void;
}
