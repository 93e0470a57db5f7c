/** One turn, or one session, as a client lives through it: requests, events, pauses, until it is over. */
import type { Means, Part } from "./means.ts";
import { type Action, type Status } from "./policy.ts";
import type { Event, SessionState, TurnState } from "./reducer.ts";
import type { Sent } from "./store.ts";
import { LegatoError } from "./wire.ts";
/** Something to show: `event` was reduced into `state`; absent when a snapshot came or only the status changed. */
export interface Update {
    readonly status: Status;
    readonly state: SessionState;
    readonly event?: Event;
    readonly action?: Action | undefined;
}
/** What a run is about: a turn to send, one to resume (the unfinished one where it has no name), or all of a session. */
export type Aim = {
    readonly send: Sent;
} | {
    readonly resume: string | undefined;
} | "follow";
/**
 * Iterate it once. `status` and `state` are always what should be shown.
 *
 * It ends when the turn has ended, or when it cannot be reached: `status` is then `interrupted` and `action` says how
 * to go on; `refusal` is the server's last refusal. Throws LegatoError when the request itself is refused for good.
 */
export declare class Run implements AsyncIterable<Update>, Part {
    #private;
    readonly session: string;
    turnId: string | undefined;
    state: SessionState;
    status: Status;
    action: Action | undefined;
    refusal: LegatoError | undefined;
    constructor(means: Means, session: string, aim: Aim);
    /** The turn as far as it is known here; what was seen of it stays, even if its session knows it no more. */
    get turn(): TurnState | undefined;
    /** Seconds since anything came. */
    get age(): number;
    /** What the turn waits for has come: it is reached for now, and not at the next look. */
    hurry(): void;
    /** The network is back, or the page: no pause is worth waiting for, and no silent stream is trusted. */
    wake(): void;
    /** The network is gone. */
    lose(): void;
    /** Lets go of the connection; the turn itself runs on. */
    close(): void;
    [Symbol.asyncIterator](): AsyncIterator<Update>;
}
