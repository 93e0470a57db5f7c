/** A session as a page shows it: followed while anybody listens, by one connection for all tabs. */
import { checked, empty, find, LegatoError, passing, reduce, reuse, SequenceGap, seqOf } from "./legato-client.ts";
import type { Action, Event, Json, LegatoClient, Run, Sent, SessionState, Status } from "./legato-client.ts";
import type { TurnOptions, Update } from "./legato-client.ts";
import type { Means, Part } from "./means.ts";
import { ownSharing, Tabs } from "./tabs.ts";

/** What is to be shown. `sent` is a turn of this tab that `state` does not have yet, `error` why nothing goes on. */
export interface View {
  readonly status: Status;
  readonly state: SessionState;
  readonly action?: Action | undefined;
  readonly sent?: Sent | null;
  readonly error?: Error | undefined;
}

const SESSIONS = new WeakMap<LegatoClient, Map<string, Session>>();

/** A session to be shown: the same object for the same client and name. */
export function sessionOf(client: LegatoClient, name: string): Session {
  const sessions = SESSIONS.get(client) ?? new Map<string, Session>();
  const session = sessions.get(name) ?? new Session(client, name);
  SESSIONS.set(client, sessions.set(name, session));
  return session;
}

/** Its functions may be taken off it. They reject with LegatoError, or with Broken where the network fails. */
export class Session implements Part {
  readonly session: string;
  readonly #client: LegatoClient;
  readonly #means: Means;
  readonly #listeners = new Set<() => void>();
  #view: View;
  #opened: AbortController | undefined;
  #tabs: Tabs | undefined;
  #run: Run | undefined;
  #line: Status = "connecting";
  #again: () => void = () => {};
  #asked = false;

  constructor(client: LegatoClient, session: string) {
    this.#client = client;
    this.#means = client.means;
    this.session = checked("session", session);
    this.#view = { status: "connecting", state: empty(session) };
  }

  /** The same object until something changes. */
  view = (): View => this.#view;

  /** Opens the session with its first listener, and leaves it after the last one. */
  subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    if (!this.#opened) void this.#open((this.#opened = new AbortController()).signal);
    return () => {
      this.#listeners.delete(listener);
      queueMicrotask(() => this.#listeners.size || this.close());
    };
  };

  /** Sends a turn; its id, once the service has it. */
  send = async (input: Json, options: TurnOptions = {}): Promise<string> => {
    const sent = this.#client.sent(input, options);
    await this.#keepSent(sent);
    await this.#deliver(sent);
    return sent.turn;
  };

  /** Asks the owner of the active turn to stop. */
  cancel = (reason?: string): Promise<void> => this.#client.cancel(this.session, this.#active, reason);

  /** Answers a question of the active turn. */
  decide = (request: string, approved: boolean, note?: string): Promise<void> =>
    this.#client.decide(this.session, this.#active, request, approved, note);

  /** Supplies a credential that a tool of the active turn waits for. */
  supply = (name: string, value: string, expiresIn?: number): Promise<void> =>
    this.#client.supply(this.session, this.#active, name, value, expiresIn);

  /** Reaches for the service again: what `action: "resume"` stands for. */
  resume = (): void => {
    const { sent } = this.#view;
    if (sent) void this.#deliver(sent).catch(() => {});
    this.hurry();
  };

  /** What the session waits for has come: it is reached for now. */
  hurry(): void {
    this.#tabs?.hurry();
    this.#hurried();
  }

  /** Page or network are back. */
  wake(): void {
    this.#tabs?.wake();
    this.#ask();
  }

  /** Its run sees that for itself. */
  lose(): void {}

  get #active(): string {
    const { state, sent } = this.#view;
    return state.active?.turn ?? sent?.turn ?? "";
  }

  async #open(signal: AbortSignal): Promise<void> {
    const { state, sent } = await this.#means.keep.load(this.session);
    if (signal.aborted) return;
    this.#means.parts.add(this);
    this.#show({ state, sent });
    if (sent) void this.#deliver(sent).catch(() => {});
    const { scope, sharing = ownSharing(), timing, lifecycle } = this.#means;
    if (scope === undefined || !sharing) return this.#lead(signal);
    const member = {
      lead: (leading: AbortSignal) => this.#lead(leading),
      heard: (told: any) => this.#heard(told),
      hurried: () => this.#hurried(),
      cursor: () => this.#view.state.cursor,
      answer: (cursor: string) => this.#answer(cursor),
      weak: () => !lifecycle.visible() && (this.#line === "reconnecting" || (this.#run?.age ?? 0) > timing.silence),
    };
    this.#tabs = new Tabs(this.#means, sharing, scope + this.session, member);
  }

  /** Leaves the session; it goes on where it is. */
  close(): void {
    this.#means.parts.delete(this);
    this.#opened?.abort();
    this.#opened = undefined;
    this.#tabs?.close();
    this.#tabs = undefined;
    void this.#means.keep.flush();
  }

  // The tab that leads.

  async #lead(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      const run = (this.#run = this.#client.follow(this.session));
      const stop = () => run.close();
      signal.addEventListener("abort", stop);
      await this.#follow(run);
      signal.removeEventListener("abort", stop);
      this.#run = undefined;
      if (!signal.aborted) await this.#woken(signal);
    }
  }

  async #follow(run: Run): Promise<void> {
    try {
      for await (const update of run) this.#tell(update);
    } catch (error) {
      if (!(error instanceof LegatoError) || error.code !== "not_found") this.#shareAndShow({ line: "failed", error });
    }
  }

  #tell({ status, action, event, state }: Update): void {
    const gone = action === "retry" && !seqOf(state);
    if (!action) this.#asked = false;
    const line = gone ? "streaming" : status;
    const news = state === this.#view.state ? {} : event ? { event } : { state };
    this.#shareAndShow({ line, action: gone ? undefined : action, ...news }, state);
  }

  #shareAndShow(told: any, state = this.#view.state): void {
    this.#tabs?.tell({ ...told, error: told.error && String(told.error) });
    this.#line = told.line;
    this.#show({ state, action: told.action, error: told.error });
  }

  #answer(cursor: string): object {
    const { state, action } = this.#view;
    return { line: this.#line, action, ...(state.cursor === cursor ? {} : { state }) };
  }

  /** Until somebody asks for more, who may have done so while the run was ending. */
  async #woken(signal: AbortSignal): Promise<void> {
    if (this.#asked) return;
    await new Promise<void>((again) => {
      this.#again = again;
      signal.addEventListener("abort", () => again());
    });
  }

  #ask(): void {
    this.#asked = true;
    this.#again();
  }

  #hurried(): void {
    this.#run?.hurry();
    this.#ask();
  }

  // The tabs that hear of it.

  #heard({ line, action, error, event, state }: any): void {
    this.#line = line;
    const known = this.#view.state;
    try {
      const next = state ? reuse(known, state) : event ? reduce(known, event as Event) : known;
      this.#show({ state: next, action, error: error && new Error(error) });
      void this.#means.keep.change(this.session, ({ sent }) => ({ state: next, sent }), false);
    } catch (failure) {
      if (!(failure instanceof SequenceGap)) throw failure;
      this.#tabs?.ask();
    }
  }

  // A turn on its way.

  async #keepSent(sent: Sent | null): Promise<void> {
    this.#show({ sent });
    await this.#means.keep.change(this.session, ({ state }) => ({ state, sent }), true);
  }

  /** Sends it, again and again until that is heard; it stays kept while it may be that it was not. */
  async #deliver(sent: Sent): Promise<void> {
    try {
      await this.#client.deliver(this.session, sent);
    } catch (error) {
      if (error instanceof LegatoError && !passing(error.status)) await this.#keepSent(null);
      throw error;
    }
    await this.#means.keep.change(this.session, ({ state }) => ({ state, sent: null }), true);
    this.hurry();
  }

  #show(changes: Partial<View>): void {
    const view = { ...this.#view, ...changes };
    const { active, turns } = view.state;
    const turn = active ?? turns.at(-1);
    const seen = view.sent && find(view.state, view.sent.turn);
    const status = this.#line === "streaming" && turn ? turn.status : this.#line;
    this.#view = { ...view, status, sent: seen ? null : (view.sent ?? null) };
    for (const listener of this.#listeners) listener();
  }
}
