/** The client: sends a turn once, follows it to its end, and survives whatever happens in between. */
import { NOWHERE, page, type Lifecycle } from "./lifecycle.ts";
import type { Means, Part, Sleep } from "./means.ts";
import { passing, pause, TIMING, type Timing } from "./policy.ts";
import { restore, type Json, type SessionState } from "./reducer.ts";
import { Run, type Aim } from "./run.ts";
import { Keep, type Sent, type Storage } from "./store.ts";
import type { Sharing } from "./tabs.ts";
import { Attempt, Broken, checked, LegatoError, sessionPath, Wire, type Fetch, type Token } from "./wire.ts";

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
export class LegatoClient {
  /** @internal */
  readonly means: Means;
  readonly #newTurn: () => string;
  readonly #unlisten: () => void;

  constructor(baseUrl: string, token: Token, options: Options = {}) {
    const { principal, fetch = (url, init) => globalThis.fetch(url, init), clock = () => Date.now() / 1000 } = options;
    const timing = { ...TIMING, ...options.timing };
    const keep = new Keep(options.storage ?? ownStorage(), principal ?? "", clock);
    const parts = new Set<Part>();
    this.#newTurn = options.newTurn ?? newTurn;
    this.means = {
      wire: new Wire(baseUrl, token, fetch, () => new Attempt(timing.silence, clock)),
      scope: principal === undefined ? undefined : `legato:${baseUrl}:${principal}:`,
      sharing: undefined,
      lifecycle: typeof document === "object" ? page(window) : NOWHERE,
      chance: Math.random,
      maxBytes: 64 * 1024 * 1024,
      sleep: sleeping,
      streams: true,
      ...options,
      clock,
      timing,
      keep,
      parts,
    };
    this.#unlisten = this.means.lifecycle.listen({
      wake: () => parts.forEach((part) => part.wake()),
      lose: () => parts.forEach((part) => part.lose()),
      hide: () => void keep.flush(),
    });
  }

  /** A new turn, sent when the run is iterated. */
  turn(session: string, input: Json, options: TurnOptions = {}): Run {
    return this.#run(session, { send: this.sent(input, options) });
  }

  /** The turn whose end this client has not seen: sent by it, or running as far as it knows. */
  async unfinished(session: string): Promise<string | undefined> {
    const { sent, state } = await this.means.keep.load(session);
    return sent?.turn ?? state.active?.turn;
  }

  /** Goes on with a turn, by default the unfinished one; iterating throws `not_found` when there is none. */
  resume(session: string, turn?: string): Run {
    return this.#run(session, { resume: turn && checked("turn", turn) });
  }

  /** Everything that happens in a session, turn after turn, until the caller leaves. */
  follow(session: string): Run {
    return this.#run(session, "follow");
  }

  /** The session with its newest turns, or an older page of them. */
  async snapshot(session: string, before?: number): Promise<SessionState> {
    const query = before === undefined ? {} : { query: { before: String(before) } };
    return restore(await this.means.wire.ask("GET", sessionPath(session), query));
  }

  /** The caller's sessions, newest first, each as the service's JSON; `before` of one page asks for the next. */
  sessions(before?: string): Promise<{ sessions: any[]; before: string | null }> {
    return this.means.wire.ask("GET", "/v1/sessions", before ? { query: { before } } : {});
  }

  /** Asks the turn's owner to stop, again and again until that is heard; whoever follows the turn sees it end. */
  cancel(session: string, turn: string, reason?: string): Promise<void> {
    return this.#asked(session, turn, "cancel", reason ? { reason } : {});
  }

  /** Answers a question of a turn, again and again until that is heard; the runs of the turn here go on at once.
   * The first decision counts: rejects with `already_decided` when that was another one. */
  decide(session: string, turn: string, request: string, approved: boolean, note?: string): Promise<void> {
    const body = { approved, ...(note && { note }) };
    return this.#asked(session, turn, `approvals/${checked("request", request)}`, body);
  }

  /** Gives a turn the credential that it waits for, for `expiresIn` seconds, again and again until that is heard. Rejects
   * with `already_decided` when it is asked for no more. */
  supply(session: string, turn: string, name: string, value: string, expiresIn?: number): Promise<void> {
    const body = { value, ...(expiresIn !== undefined && { expires_in: expiresIn }) };
    return this.#asked(session, turn, `credentials/${checked("name", name)}`, body);
  }

  /** Deletes the session there and what is kept of it here. */
  async delete(session: string): Promise<void> {
    await this.means.wire.ask("DELETE", sessionPath(session));
    await this.means.keep.forget(session);
  }

  /** Lets go of all connections; the turns run on. */
  close(): void {
    this.#unlisten();
    this.means.parts.forEach((part) => part.close());
  }

  /** @internal A turn under an id of its own. */
  sent(input: Json, { turn, agent, if_active, retry_of }: TurnOptions): Sent {
    const id = checked("turn", turn ?? this.#newTurn());
    const more = { ...(agent && { agent }), ...(if_active && { if_active }), ...(retry_of && { retry_of }) };
    return { turn: id, body: { turn: id, input, ...more } };
  }

  /** @internal Has the turn started, without a stream. */
  deliver(session: string, { turn, body }: Sent): Promise<void> {
    return this.#insist(`${sessionPath(session)}/turns`, body, { "Idempotency-Key": turn });
  }

  async #asked(session: string, turn: string, what: string, body: object): Promise<void> {
    const path = `${sessionPath(session)}/turns/${checked("turn", turn)}/${what}`;
    try {
      await this.#insist(path, body);
    } catch (failure) {
      if (failure instanceof LegatoError && failure.code === "already_decided") this.#hurry(session, turn);
      throw failure;
    }
    this.#hurry(session, turn);
  }

  #hurry(session: string, turn: string): void {
    for (const part of this.means.parts) {
      if (part.session === session && (!part.turnId || part.turnId === turn)) part.hurry();
    }
  }

  /** Repeats what may be repeated while the network or a passing refusal is in the way, `giveUp` seconds long. */
  async #insist(path: string, body: object, headers: Record<string, string> = {}): Promise<void> {
    const { wire, timing, clock, sleep, chance } = this.means;
    const until = clock() + timing.giveUp;
    for (let attempts = 0; ; attempts++) {
      try {
        return await wire.ask("POST", path, { body, headers });
      } catch (failure) {
        const refused = failure instanceof LegatoError ? failure : undefined;
        const again = refused ? passing(refused.status) : failure instanceof Broken;
        if (!again || clock() >= until) throw failure;
        await sleep(pause(attempts, timing, chance(), refused?.pause));
      }
    }
  }

  #run(session: string, aim: Aim): Run {
    sessionPath(session);
    return new Run(this.means, session, aim);
  }
}

const newTurn = (): string => `t_${Date.now().toString(36)}${Math.random().toString(36).slice(2)}`;

function sleeping(seconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((awake) => {
    const timer = setTimeout(awake, seconds * 1000);
    signal?.addEventListener("abort", () => (clearTimeout(timer), awake()));
  });
}

/** A page may be forbidden to look at it. */
function ownStorage(): Storage | undefined {
  try {
    return globalThis.sessionStorage;
  } catch {
    return undefined;
  }
}
