/**
 * What a client does next: pure decisions over how the last request ended. Times are in seconds.
 *
 * Rules of this file:
 * - A turn is shown as completed, interrupted or failed because its own terminal event says so; a turn that cannot be
 *   reached is `reconnecting`, then, after `giveUp` seconds without contact, `interrupted` with the action `resume`.
 * - Pauses are exponential with full jitter. The first event of a stream resets them, and nothing else does.
 * - A turn that waits for a person is looked at every `look` seconds. After a decision that was made here its stream is
 *   asked for at once, and a few times more while the turn has not gone on.
 * - A gap breaks no line: the events before the client's own turn are asked for at once, but not twice without news.
 */
import { type TurnStatus } from "./reducer.ts";
export type Status = "connecting" | "streaming" | "reconnecting" | "waiting" | "completed" | "interrupted" | "failed";
/** `resume` the same turn; or `retry`: its session no longer knows it, send a new one with `retry_of`. */
export type Action = "resume" | "retry";
/** Seconds. `silence`: without a byte for so long a stream is broken; `stale`: for so long, it is not trusted any more
 * when a page comes back. `first`, `most`: the bounds of a pause. `look`: between looks at a waiting turn. `giveUp`:
 * without contact. `wait`: what a long poll asks for. `tab`: in which the tab that leads must answer the others. */
export interface Timing {
    readonly silence: number;
    readonly stale: number;
    readonly first: number;
    readonly most: number;
    readonly look: number;
    readonly giveUp: number;
    readonly wait: number;
    readonly tab: number;
}
export declare const TIMING: Timing;
export declare const AT_ONCE: string[];
/** The pause before the next attempt after `attempts` in vain; no less than the server asked for. */
export declare function pause(attempts: number, timing: Timing, chance: number, asked?: number): number;
/** Whether the same request may be answered later. A redirect is the sign-in page of a network, not the service. */
export declare function passing(code: number): boolean;
/** How one request ended; `gap`: with an event that does not follow the state. `turn` is the turn's status by then,
 * `moved`: it brought news, `lived`: from its first byte to its last, `pause`: what the server asks for. */
export interface Outcome {
    readonly kind: "read" | "closed" | "broke" | "gap" | "silent" | "over" | "refused";
    readonly turn?: TurnStatus | undefined;
    readonly moved?: boolean;
    readonly lived?: number;
    readonly reason?: string;
    readonly code?: number;
    readonly pause?: number | undefined;
}
/** The next request and when. `look` reads the snapshot, `connect` the events; `refuse` throws the refusal. */
export interface Plan {
    readonly do: "connect" | "look" | "stop" | "refuse";
    readonly status: Status;
    readonly delay?: number;
    readonly fresh?: boolean;
    readonly action?: Action;
}
/** What a client remembers of its attempts. `contact` is the time of the last one that reached the turn. */
export interface Link {
    readonly contact: number;
    readonly attempts: number;
    readonly silences: number;
    readonly refreshed: boolean;
    readonly looked: boolean;
    readonly decided: boolean;
}
/** `streams`: whether answers can be read bit by bit at all. */
export declare const begin: (now: number, streams?: boolean) => Link;
/** Two answers silent from their opening on: a hop on the way holds streams back, so ask for whole answers. */
export declare const polls: (link: Link) => boolean;
/** A decision was made here, or a cancel: the turn is about to go on. */
export declare function hurry(link: Link): [Link, Plan];
export declare function after(before: Link, outcome: Outcome, timing: Timing, now: number, chance: number): [Link, Plan];
