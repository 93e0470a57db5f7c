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
import { ended, type TurnStatus } from "./reducer.ts";

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

export const TIMING: Timing = { silence: 25, stale: 10, first: 1, most: 30, look: 30, giveUp: 300, wait: 20, tab: 3 };
export const AT_ONCE = ["draining", "deadline", "auth"];
const LATER = [408, 425, 429];
/** How often a turn that was decided on is reached for before it is one that waits as any other. */
const EXPECTED = 3;
/** Seconds a stream must have lived to count as contact when it brought no event. */
const ALIVE = 5;

/** The pause before the next attempt after `attempts` in vain; no less than the server asked for. */
export function pause(attempts: number, timing: Timing, chance: number, asked = 0): number {
  return Math.max(Math.min(timing.most, timing.first * 2 ** Math.min(attempts, 30)) * chance, asked);
}

/** Whether the same request may be answered later. A redirect is the sign-in page of a network, not the service. */
export function passing(code: number): boolean {
  return LATER.includes(code) || code >= 500 || (code >= 300 && code < 400);
}

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
export const begin = (now: number, streams = true): Link => ({
  contact: now,
  attempts: 0,
  silences: streams ? 0 : 2,
  refreshed: false,
  looked: false,
  decided: false,
});

/** Two answers silent from their opening on: a hop on the way holds streams back, so ask for whole answers. */
export const polls = (link: Link): boolean => link.silences >= 2;

/** A decision was made here, or a cancel: the turn is about to go on. */
export function hurry(link: Link): [Link, Plan] {
  return [{ ...link, attempts: 0, decided: true }, { do: "connect", status: "waiting" }];
}

export function after(before: Link, outcome: Outcome, timing: Timing, now: number, chance: number): [Link, Plan] {
  const link = noting(before, outcome, now);
  const { kind, turn, reason = "" } = outcome;
  const again = { ...link, attempts: 1 };
  if (turn && ended(turn)) return [link, { do: "stop", status: turn as Status }];
  if (kind === "refused") return refused(link, outcome, timing, now, chance);
  if (kind === "over") return over(link);
  if (kind === "gap" && !link.attempts) return [again, { do: "connect", status: turn ?? "streaming" }];
  if (turn === "waiting" || reason === "suspended") return waits(link, timing, chance);
  if (kind === "read" && (outcome.moved || (outcome.lived ?? 0) >= timing.first)) {
    return [link, { do: "connect", status: "streaming" }];
  }
  if (!link.attempts && AT_ONCE.includes(reason)) {
    return [again, { do: "connect", status: "reconnecting", delay: outcome.pause ?? 0, fresh: reason === "auth" }];
  }
  return backoff(link, outcome, timing, now, chance);
}

function noting(link: Link, outcome: Outcome, now: number): Link {
  const { kind, moved = false, lived = 0 } = outcome;
  const reached = moved || kind === "read" || lived >= ALIVE;
  return {
    ...link,
    contact: reached ? now : link.contact,
    attempts: moved ? 0 : link.attempts,
    silences: silences(link, kind, moved, lived),
    refreshed: link.refreshed && !reached,
    decided: link.decided && !moved,
  };
}

function silences(link: Link, kind: Outcome["kind"], moved: boolean, lived: number): number {
  if (polls(link)) return link.silences;
  if (kind === "silent" && lived < ALIVE) return link.silences + (moved ? 0 : 1);
  return moved || lived ? 0 : link.silences;
}

function refused(link: Link, outcome: Outcome, timing: Timing, now: number, chance: number): [Link, Plan] {
  const code = outcome.code ?? 0;
  if (code === 401) {
    return link.refreshed
      ? [link, { do: "stop", status: "interrupted", action: "resume" }]
      : [{ ...link, refreshed: true }, { do: "connect", status: "reconnecting", fresh: true }];
  }
  if (code === 404 || code === 410) return [link, { do: "stop", status: "interrupted", action: "retry" }];
  return passing(code) ? backoff(link, outcome, timing, now, chance) : [link, { do: "refuse", status: "failed" }];
}

function waits(link: Link, timing: Timing, chance: number): [Link, Plan] {
  if (!link.decided || link.attempts >= EXPECTED) {
    return [{ ...link, decided: false }, { do: "look", status: "waiting", delay: timing.look }];
  }
  const again: Plan = { do: "connect", status: "waiting", delay: pause(link.attempts, timing, chance) };
  return [{ ...link, attempts: link.attempts + 1 }, again];
}

/** The server says the turn is over and the state does not know how: one look tells, or it is gone. */
function over(link: Link): [Link, Plan] {
  return link.looked
    ? [link, { do: "stop", status: "interrupted", action: "retry" }]
    : [{ ...link, looked: true }, { do: "look", status: "reconnecting" }];
}

function backoff(link: Link, outcome: Outcome, timing: Timing, now: number, chance: number): [Link, Plan] {
  if (now - link.contact >= timing.giveUp) return [link, { do: "stop", status: "interrupted", action: "resume" }];
  const delay = pause(link.attempts, timing, chance, outcome.pause);
  const plan: Plan = { do: "connect", status: "reconnecting", delay, fresh: outcome.reason === "auth" };
  return [{ ...link, attempts: link.attempts + 1 }, plan];
}
