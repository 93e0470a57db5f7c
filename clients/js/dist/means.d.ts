/** What everything here is given: the way to the service, time, chance, the page, and where state is kept. */
import type { Lifecycle } from "./lifecycle.ts";
import type { Timing } from "./policy.ts";
import type { Keep } from "./store.ts";
import type { Sharing } from "./tabs.ts";
import type { Wire } from "./wire.ts";
/** Ends early, and without an error, when its signal is aborted. */
export type Sleep = (seconds: number, signal?: AbortSignal) => Promise<void>;
/** A run, or a session that is shown, for as long as it lives. */
export interface Part {
    readonly session: string;
    readonly turnId?: string | undefined;
    /** The network is back, or the page. */
    wake(): void;
    /** The network is gone. */
    lose(): void;
    /** What its turn waits for has come. */
    hurry(): void;
    close(): void;
}
/** Times are in seconds. `scope` names whose sessions these are, and where: tabs of one scope
 * share what they follow. */
export interface Means {
    readonly wire: Wire;
    readonly keep: Keep;
    readonly timing: Timing;
    readonly maxBytes: number;
    readonly streams: boolean;
    readonly clock: () => number;
    readonly sleep: Sleep;
    readonly chance: () => number;
    readonly lifecycle: Lifecycle;
    readonly sharing: Sharing | undefined;
    readonly scope: string | undefined;
    readonly parts: Set<Part>;
}
