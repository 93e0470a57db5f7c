/** One turn, or one session, as a client lives through it: requests, events, pauses, until it is over. */
import * as policy from "./policy.ts";
import type { Action, Link, Outcome, Plan, Status, Timing } from "./policy.ts";
import { empty, ended, find, reduce, restore, reuse, seqOf, SequenceGap } from "./reducer.ts";
import type { Event, SessionState, TurnState, TurnStatus } from "./reducer.ts";
import { decoder, type Message } from "./sse.ts";
import type { Keep, Sent } from "./store.ts";
import { Broken, LegatoError, problem, retryAfter, sessionPath, statusOf, unbroken, Watch } from "./wire.ts";
import { JSON_TYPE, STREAM_TYPE, type Wire } from "./wire.ts";

/** What a run is given: the way to the server, time, chance, and where its state is kept. Times are in seconds;
 * `sleep` ends early, and without an error, when its signal is aborted. */
export interface Means {
  readonly wire: Wire;
  readonly timing: Timing;
  readonly maxBytes: number;
  readonly clock: () => number;
  readonly sleep: (seconds: number, signal: AbortSignal) => Promise<void>;
  readonly chance: () => number;
  readonly keep: Keep;
}

/** Something to show: `event` was reduced into `state`; absent when a snapshot came or only the status changed. */
export interface Update {
  readonly status: Status;
  readonly state: SessionState;
  readonly event?: Event;
  readonly action?: Action | undefined;
}

/** What a run is about: a turn to send, one to resume (the unfinished one where it has no name), or all of a session. */
export type Aim = { readonly send: Sent } | { readonly resume: string | null } | "follow";

/**
 * Iterate it once. `status` and `state` are always what should be shown.
 *
 * It ends when the turn has ended, or when it cannot be reached: `status` is then `interrupted` and `action` says how
 * to go on; `refusal` is the server's last refusal. Throws LegatoError when the request itself is refused for good.
 */
export class Run implements AsyncIterable<Update> {
  readonly session: string;
  turnId: string | null = null;
  state: SessionState;
  status: Status = "connecting";
  action: Action | undefined;
  refusal: LegatoError | undefined;

  readonly #means: Means;
  readonly #aim: Aim;
  readonly #left: () => void;
  #sent: Sent | null = null;
  #known = true;
  #outcome: Outcome = { kind: "broke" };
  #last: TurnState | undefined;
  #watch: Watch | undefined;
  #nap: AbortController | undefined;
  #waits = false;
  #closed = false;
  #hurried = false;
  #woken = false;
  #heardAt = 0;
  #renewing = false;
  /** The answers of this fetch have no body to read bit by bit. */
  #whole = false;
  readonly #updates = this.#live();

  constructor(means: Means, session: string, aim: Aim, left: () => void) {
    this.#means = means;
    this.session = session;
    this.#aim = aim;
    this.#left = left;
    this.state = empty(session);
    if (aim !== "follow") this.turnId = "send" in aim ? aim.send.turn : aim.resume;
  }

  /** The turn as far as it is known here; what was seen of it stays, even if its session knows it no more. */
  get turn(): TurnState | undefined {
    return this.#stands ?? this.#last;
  }

  /** Seconds since anything came. */
  get age(): number {
    return this.#means.clock() - this.#heardAt;
  }

  /** What the turn waits for has come: it is reached for now, and not at the next look. */
  hurry(): void {
    this.#hurried = true;
    if (this.#waits) this.#nap?.abort();
  }

  /** The network is back, or the page: no pause is worth waiting for, and no silent stream is trusted. */
  wake(): void {
    if (this.#nap) return this.#nap.abort();
    if (this.age < this.#means.timing.stale) return;
    this.#woken = true;
    this.#watch?.stop();
  }

  /** The network is gone. */
  lose(): void {
    this.#watch?.stop();
  }

  /** Lets go of the connection; the turn itself runs on. */
  close(): void {
    this.#closed = true;
    this.#watch?.stop();
    this.#nap?.abort();
  }

  [Symbol.asyncIterator](): AsyncIterator<Update> {
    const leave = async (): Promise<IteratorResult<Update>> => {
      this.close();
      return this.#updates.return(undefined);
    };
    return { next: () => this.#updates.next(), return: leave };
  }

  async *#live(): AsyncGenerator<Update, undefined> {
    try {
      await this.#begin();
      yield this.#update();
      yield* this.#insist();
    } finally {
      this.#left();
      await this.#means.keep.flush();
    }
  }

  async *#insist(): AsyncGenerator<Update, void> {
    const { timing, clock, chance } = this.#means;
    let link = policy.begin(clock());
    let plan: Plan = { do: "connect", status: "connecting" };
    while (plan.do === "connect" || plan.do === "look") {
      if (await this.#pause(plan)) [link, plan] = policy.hurry(link);
      if (this.#closed) return;
      yield* this.#attempt(plan, link);
      if (this.#closed) return;
      [link, plan] = policy.after(link, this.#outcome, timing, clock(), chance());
      if (this.#show(plan.status, plan.action)) yield this.#update();
    }
    await this.#finish(plan);
  }

  async #begin(): Promise<void> {
    const { state, sent } = await this.#means.keep.load(this.session);
    const aim = this.#aim;
    this.state = state;
    if (aim === "follow") return;
    if ("resume" in aim) this.turnId ??= sent?.turn ?? state.active?.turn ?? null;
    if (!this.turnId) throw new LegatoError("not_found", `session ${this.session} has no unfinished turn`);
    this.#sent = "send" in aim ? aim.send : sent?.turn === this.turnId ? sent : null;
    this.#known = !this.#sent || !!this.#stands;
    if (this.#sent) await this.#save(true);
  }

  /** Waits as planned; true: what the turn waits for has come meanwhile, or before. */
  async #pause({ delay = 0, status }: Plan): Promise<boolean> {
    const nap = new AbortController();
    this.#waits = status === "waiting";
    if (!this.#closed && !this.#woken && !(this.#waits && this.#hurried)) {
      this.#nap = nap;
      await this.#means.sleep(delay, nap.signal);
      this.#nap = undefined;
    }
    const hurried = this.#waits && this.#hurried;
    this.#woken = this.#waits = false;
    if (hurried) this.#hurried = false;
    return hurried;
  }

  /** What is left to `resume` stays stored as sent; a session that is not there is an error to who follows it. */
  async #finish(plan: Plan): Promise<void> {
    if (plan.action !== "resume") this.#sent = null;
    await this.#save(true);
    if (this.refusal && (plan.do === "refuse" || (plan.action === "retry" && !this.turnId))) throw this.refusal;
  }

  // One request.

  /** Sets `#outcome` to how it ended. */
  async *#attempt(plan: Plan, link: Link): AsyncGenerator<Update, void> {
    const watch = (this.#watch = new Watch(this.#means.timing.silence));
    const seen = new Seen(this.#means.clock);
    this.#heardAt = this.#means.clock();
    try {
      yield* this.#answer(await this.#request(plan, link, watch.signal), seen, watch);
    } catch (failure) {
      if (failure instanceof SequenceGap) this.#ended("gap", seen);
      else if (failure instanceof Broken) this.#ended(watch.silent ? "silent" : "broke", seen);
      else this.#outcome = { kind: "broke", turn: this.#turnStatus, moved: seen.moved };
    } finally {
      watch.stop();
    }
  }

  #request(plan: Plan, link: Link, signal: AbortSignal): Promise<Response> {
    const { wire, timing } = this.#means;
    const path = sessionPath(this.session);
    const fresh = plan.fresh ?? false;
    const polls = this.#whole || policy.polls(link);
    const accept = polls ? JSON_TYPE : STREAM_TYPE;
    if (plan.do === "look") return wire.open("GET", path, { fresh }, signal);
    if (this.#sent && !this.#known) {
      const headers = { "Idempotency-Key": this.#sent.turn };
      return wire.open("POST", `${path}/turns`, { accept, headers, body: this.#sent.body, fresh }, signal);
    }
    const query = { ...(this.turnId && { turn: this.turnId }), ...(polls && { wait: String(timing.wait) }) };
    const headers: Record<string, string> = this.#fresh ? {} : { "Last-Event-ID": this.state.cursor };
    return wire.open("GET", `${path}/events`, { accept, headers, query, fresh }, signal);
  }

  async *#answer(response: Response, seen: Seen, watch: Watch): AsyncGenerator<Update, void> {
    const kind = response.headers.get("content-type")?.split(";")[0]?.trim();
    if (response.status === 204) {
      this.#ended("over", seen);
    } else if (!response.ok) {
      this.refusal = await problem(response);
      const pause = retryAfter(response);
      this.#outcome = { kind: "refused", turn: this.#turnStatus, code: statusOf(response), pause };
    } else if (kind !== STREAM_TYPE) {
      yield* this.#read(response, seen);
    } else if (response.body) {
      yield* this.#stream(response, response.body, seen, watch);
    } else {
      this.#whole = true;
      this.#outcome = { kind: "closed", turn: this.#turnStatus, reason: "deadline" };
    }
  }

  async *#stream(
    response: Response, body: ReadableStream<Uint8Array>, seen: Seen, watch: Watch,
  ): AsyncGenerator<Update, void> {
    const reader = body.getReader();
    const decode = decoder(this.#means.maxBytes);
    for (;;) {
      const { done, value } = await unbroken(reader.read());
      if (done) return this.#ended("broke", seen);
      watch.byte();
      this.#heardAt = seen.byte();
      if (this.#show(this.#connected)) yield this.#update();
      for (const message of decode(value)) {
        if (message.event === "stream.closing") return this.#close(JSON.parse(message.data), seen);
        if (message.event === "auth.expiring") void this.#renew(response, watch.signal);
        if (message.id === null) continue;
        const update = await this.#take(message, seen);
        if (update) yield update;
        if (ended(this.#turnStatus)) return this.#ended("read", seen);
      }
    }
  }

  /** A stream that is not prolonged is resumed: whatever fails here is no failure of the run. */
  async #renew(response: Response, signal: AbortSignal): Promise<void> {
    const { wire } = this.#means;
    const stream = response.headers.get("legato-stream");
    if (!wire.renews || this.#renewing) return;
    this.#renewing = true;
    try {
      await wire.ask("POST", `${sessionPath(this.session)}/auth`, { body: { stream }, fresh: true }, signal);
    } catch {
      return;
    } finally {
      this.#renewing = false;
    }
  }

  #close({ reason = "", retry_ms = 0 }: { reason?: string; retry_ms?: number }, seen: Seen): void {
    this.#ended("closed", seen);
    this.#outcome = { ...this.#outcome, reason: String(reason), pause: retry_ms ? retry_ms / 1000 : undefined };
  }

  #take(message: Message, seen: Seen): Promise<Update | undefined> {
    const fields = JSON.parse(message.data);
    return message.event === "snapshot" ? this.#replace(fields, seen) : this.#reduce(fields, seen);
  }

  /** A long poll's answer, a snapshot, or the 202 of a turn started without a stream. */
  async *#read(response: Response, seen: Seen): AsyncGenerator<Update, void> {
    const started = this.#means.clock();
    const fields = JSON.parse(await unbroken(response.text()));
    this.#heardAt = seen.byte();
    this.#show(this.#connected);
    if (response.status === 202) this.#known = seen.moved = true;
    else if (!("cursor" in fields)) throw new TypeError("neither a snapshot nor a poll's answer");
    const found = "active" in fields ? fields : fields.snapshot;
    const updates = [found && (await this.#replace(found, seen))];
    for (const event of fields.events ?? []) updates.push(await this.#reduce(event, seen));
    yield* updates.filter(Boolean);
    const lived = this.#means.clock() - started;
    this.#outcome = { kind: "read", turn: this.#turnStatus, moved: seen.moved, lived };
  }

  // What the answers change.

  async #replace(fields: unknown, seen: Seen): Promise<Update | undefined> {
    const state = reuse(this.state, restore(fields));
    this.#known = true;
    if (state === this.state) return;
    if (this.turnId) this.#last = this.turn;
    seen.moved = true;
    this.state = state;
    await this.#save(true);
    this.#show(this.#connected);
    return this.#update();
  }

  async #reduce(fields: unknown, seen: Seen): Promise<Update | undefined> {
    const event = eventOf(fields);
    this.#known = true;
    const state = reduce(this.state, event);
    if (state === this.state) return;
    seen.moved = true;
    this.state = state;
    await this.#save(false);
    this.#show(this.#connected);
    return { ...this.#update(), event };
  }

  /** The turn that another run of this session has sent stays kept. */
  #save(now: boolean): Promise<void> {
    const own = ended(this.#turnStatus) ? null : this.#sent;
    const other = (sent: Sent | null) => (sent?.turn === this.turnId ? null : sent);
    const { state } = this;
    return this.#means.keep.change(this.session, ({ sent }) => ({ state, sent: own ?? other(sent) }), now);
  }

  #show(status: Status, action?: Action): boolean {
    const changed = status !== this.status || action !== this.action;
    this.status = status;
    this.action = action;
    return changed;
  }

  #update(): Update {
    return { status: this.status, state: this.state, action: this.action };
  }

  #ended(kind: Outcome["kind"], seen: Seen): void {
    this.#outcome = { kind, turn: this.#turnStatus, moved: seen.moved, lived: seen.lived };
  }

  get #stands(): TurnState | undefined {
    return this.turnId ? find(this.state, this.turnId) : (this.state.active ?? undefined);
  }

  get #turnStatus(): TurnStatus | undefined {
    return this.#stands?.status;
  }

  get #connected(): Status {
    return this.#turnStatus ?? "streaming";
  }

  get #fresh(): boolean {
    return !seqOf(this.state);
  }
}

/** Throws TypeError where the envelope is none. */
function eventOf(fields: any): Event {
  const { seq, epoch, turn, type } = fields;
  if (seq > 0 && epoch > 0 && typeof turn === "string" && typeof type === "string") return fields;
  throw new TypeError("not an event");
}

/** What one answer has brought so far. */
class Seen {
  readonly #clock: () => number;
  #first: number | undefined;
  #last = 0;
  moved = false;

  constructor(clock: () => number) {
    this.#clock = clock;
  }

  byte(): number {
    this.#last = this.#clock();
    this.#first ??= this.#last;
    return this.#last;
  }

  get lived(): number {
    return this.#first === undefined ? 0 : this.#last - this.#first;
  }
}
