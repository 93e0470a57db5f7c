/** What everything here is given: the way to the service, time, chance, the page, and where state is kept. */
import type { Lifecycle } from "./lifecycle.ts";
import type { Timing } from "./policy.ts";
import type { Keep } from "./store.ts";
import type { Sharing } from "./tabs.ts";
import type { Wire } from "./wire.ts";
/** Ends early, and without an error, when its signal is aborted. */
export type Sleep = (seconds: number, signal?: AbortSignal) => Promise<void>;
/** Times are in seconds. `scope` names whose sessions these are, and where. */
export interface Means {
    readonly wire: Wire;
    readonly keep: Keep;
    readonly timing: Timing;
    readonly maxBytes: number;
    readonly clock: () => number;
    readonly sleep: Sleep;
    readonly chance: () => number;
    readonly lifecycle: Lifecycle;
    readonly sharing: Sharing | undefined;
    readonly scope: string;
}
