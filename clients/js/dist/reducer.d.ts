/**
 * The one reducer: what a session looks like after its events. The same rules run in every client.
 *
 * Rules of this file:
 * - `reduce` is pure. A state is the JSON of a `snapshot`; a piece that an event does not change stays the same object.
 * - An event at or below the state's `seq` changes nothing. One that leaves a hole, or is of another epoch and not the
 *   next one's fence, throws `SequenceGap`. Only `restore` (a snapshot) may set `seq` back.
 * - TAKES says what a turn takes in each status. Anything else changes nothing but `seq`.
 * - Only `turn.completed` turns a draft into an output; any other end keeps it as `partial`.
 */
export type Json = null | boolean | number | string | Json[] | {
    [name: string]: Json;
};
export type TurnStatus = "streaming" | "waiting" | "completed" | "interrupted" | "failed";
/** What one step has said so far. */
export interface Part {
    readonly step: number;
    readonly text: string;
}
export interface ErrorInfo {
    readonly code: string;
    readonly message: string;
}
/** One call of a tool. `unsettled`: its turn ended before. */
export interface ToolState {
    readonly call: string;
    readonly step: number;
    readonly name: string;
    readonly arguments?: Json;
    readonly effect: "read" | "idempotent" | "once";
    readonly status: "running" | "ok" | "error" | "unsettled";
    readonly content?: Json;
    readonly error?: ErrorInfo;
    readonly message?: string;
    readonly fraction?: number;
}
/** A question to a person; `approved` is absent while it is open. `expires_at` is in ms. */
export interface Approval {
    readonly request: string;
    readonly call: string;
    readonly kind: string;
    readonly prompt: string;
    readonly expires_at: number;
    readonly approved?: boolean;
    readonly by?: string;
    readonly note?: string;
}
/** A credential that the turn waits for; only its user can give it. `expires_at` is in ms. */
export interface RequiredCredential {
    readonly name: string;
    readonly reason: string;
    readonly expires_at: number;
}
/** One turn as its events tell it. While it runs its text is in `draft`; afterwards in `output` or `partial`. */
export interface TurnState {
    readonly turn: string;
    readonly status: TurnStatus;
    readonly input?: Json;
    readonly agent: string;
    readonly draft: readonly Part[];
    readonly reasoning: readonly Part[];
    readonly tools: readonly ToolState[];
    readonly approvals: readonly Approval[];
    readonly credentials: readonly RequiredCredential[];
    readonly output?: string;
    readonly partial?: string;
    readonly error?: ErrorInfo;
    readonly usage?: Readonly<Record<string, number>>;
    readonly finish_reason?: string;
}
/** A session as a client knows it: `cursor` is the last event reduced, `turns` the ended ones, oldest first; `before`
 * names the page of older ones, where the service said so. */
export interface SessionState {
    readonly cursor: string;
    readonly session: string;
    readonly turns: readonly TurnState[];
    readonly active: TurnState | null;
    readonly before?: number;
}
/** One numbered fact, as the service sends it. `at` is in ms. */
export interface Event {
    readonly seq: number;
    readonly epoch: number;
    readonly turn: string;
    readonly at: number;
    readonly type: string;
    readonly [field: string]: any;
}
/** An event does not follow on what the state has: resume from the cursor instead of reducing it. */
export declare class SequenceGap extends Error {
    readonly code = "sequence_gap";
}
export declare const text: (turn: TurnState) => string;
export declare const empty: (session: string) => SessionState;
export declare function find(state: SessionState, turn: string): TurnState | undefined;
export declare const ended: (status: string | undefined) => boolean;
/** The state that a snapshot's JSON stands for. Throws TypeError when it is none. */
export declare function restore(fields: any): SessionState;
/** The state after `event`, which is the state itself where it has that already. Throws SequenceGap. */
export declare function reduce(state: SessionState, event: Event): SessionState;
/** The turn after `event`; the turn itself where TAKES does not let it in. */
export declare function advance(turn: TurnState, event: Event): TurnState;
/** `state`, made of the objects of `before` wherever those say the same. */
export declare function reuse(before: SessionState, state: SessionState): SessionState;
/** The number of the last event that a state has. */
export declare const seqOf: (state: SessionState) => number;
