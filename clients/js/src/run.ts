/** One turn, or one session, as a client lives through it: requests, events, pauses, until it is over. */
import type { Means, Part } from "./means.ts";
import { after, begin, hurry, polls, type Action, type Link, type Outcome, type Plan, type Status } from "./policy.ts";
import { empty, ended, find, reduce, restore, reuse, seqOf, SequenceGap } from "./reducer.ts";
import type { Event, SessionState, TurnState } from "./reducer.ts";
import { decoder, type Message } from "./sse.ts";
import type { Sent } from "./store.ts";
import { Attempt, Broken, JSON_TYPE, LegatoError, problem, sessionPath, STREAM_TYPE, unbroken } from "./wire.ts";

/** Something to show: `event` was reduced into `state`; absent when a snapshot came or only the status changed. */
export interface Update {
  readonly status: Status;
  readonly state: SessionState;
  readonly event?: Event;
  readonly action?: Action | undefined;
}

/** What a run is about: a turn to send, one to resume (the unfinished one where it has no name), or all of a session. */
export type Aim = { readonly send: Sent } | { readonly resume: string | undefined } | "follow";

/**
 * Iterate it once. `status` and `state` are always what should be shown.
 *
 * It ends when the turn has ended, or when it cannot be reached: `status` is then `interrupted` and `action` says how
 * to go on; `refusal` is the server's last refusal. Throws LegatoError when the request itself is refused for good.
 */
export class Run implements AsyncIterable<Update>, Part {
  readonly session: string;
  turnId: string | undefined;
  state: SessionState;
  status: Status = "connecting";
  action: Action | undefined;
  refusal: LegatoError | undefined;

  readonly #means: Means;
  readonly #aim: Aim;
  #sent: Sent | null = null;
  #known = true;
  #outcome: Outcome = { kind: "broke" };
  #last: TurnState | undefined;
  #attempt: Attempt | undefined;
  #nap: AbortController | undefined;
  #waits = false;
  #closed = false;
  #hurried = false;
  #woken = false;
  #renewing = false;
  readonly #updates = this.#live();

  constructor(means: Means, session: string, aim: Aim) {
    this.#means = means;
    this.session = session;
    this.#aim = aim;
    this.state = empty(session);
    means.parts.add(this);
    if (aim !== "follow") this.turnId = "send" in aim ? aim.send.turn : aim.resume;
  }

  /** The turn as far as it is known here; what was seen of it stays, even if its session knows it no more. */
  get turn(): TurnState | undefined {
    return this.#stands ?? this.#last;
  }

  /** Seconds since anything came. */
  get age(): number {
    return this.#attempt?.age ?? 0;
  }

  /** What the turn waits for has come: it is reached for now, and not at the next look. */
  hurry(): void {
    this.#hurried = true;
    if (this.#waits) this.#nap?.abort();
  }

  /** The network is back, or the page: no pause is worth waiting for, and no silent stream is trusted. */
  wake(): void {
    if (this.#nap) this.#nap.abort();
    else if (this.age >= this.#means.timing.stale) {
      this.#woken = true;
      this.lose();
    }
  }

  /** The network is gone. */
  lose(): void {
    this.#attempt?.stop();
  }

  /** Lets go of the connection; the turn itself runs on. */
  close(): void {
    this.#closed = true;
    this.lose();
    this.#nap?.abort();
  }

  [Symbol.asyncIterator](): AsyncIterator<Update> {
    return {
      next: () => this.#updates.next(),
      return: () => {
        this.close();
        return this.#updates.return(undefined);
      },
    };
  }

  async *#live(): AsyncGenerator<Update, undefined> {
    const { timing, clock, chance, keep, parts, streams } = this.#means;
    try {
      await this.#begin();
      yield this.#update();
      let link = begin(clock(), streams);
      let plan: Plan = { do: "connect", status: "connecting" };
      while (plan.do === "connect" || plan.do === "look") {
        if (await this.#pause(plan)) [link, plan] = hurry(link);
        if (!this.#closed) yield* this.#try(plan, link);
        if (this.#closed) return;
        [link, plan] = after(link, this.#outcome, timing, clock(), chance());
        if (this.#show(plan.status, plan.action)) yield this.#update();
      }
      await this.#finish(plan);
    } finally {
      parts.delete(this);
      await keep.flush();
    }
  }

  async #begin(): Promise<void> {
    const { state, sent } = await this.#means.keep.load(this.session);
    const aim = this.#aim;
    this.state = state;
    if (aim === "follow") return;
    this.turnId ??= sent?.turn ?? state.active?.turn;
    if (!this.turnId) throw new LegatoError(`session ${this.session} has no unfinished turn`, { code: "not_found" });
    this.#sent = "send" in aim ? aim.send : sent?.turn === this.turnId ? sent : null;
    this.#known = !this.#sent || !!this.#stands;
    if (this.#sent) await this.#save(true);
  }

  /** Waits as planned; true: what the turn waits for has come meanwhile, or before. */
  async #pause({ delay = 0, status }: Plan): Promise<boolean> {
    this.#waits = status === "waiting";
    if (!this.#closed && !this.#woken && !(this.#waits && this.#hurried)) {
      this.#nap = new AbortController();
      await this.#means.sleep(delay, this.#nap.signal);
      this.#nap = undefined;
    }
    const hurried = this.#waits && this.#hurried;
    this.#hurried &&= !hurried;
    this.#woken = this.#waits = false;
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
  async *#try(plan: Plan, link: Link): AsyncGenerator<Update, void> {
    const { timing, clock } = this.#means;
    const attempt = (this.#attempt = new Attempt(timing.silence, clock));
    try {
      yield* this.#answer(await this.#request(plan, link, attempt.signal), attempt);
    } catch (failure) {
      if (failure instanceof SequenceGap) this.#ended("gap");
      else if (failure instanceof Broken) this.#ended(attempt.silent ? "silent" : "broke");
      else this.#ended("broke", { lived: 0 });
    } finally {
      attempt.stop();
    }
  }

  #request({ do: what, fresh }: Plan, link: Link, signal: AbortSignal): Promise<Response> {
    const { wire, timing } = this.#means;
    const path = sessionPath(this.session);
    const whole = polls(link);
    const accept = whole ? JSON_TYPE : STREAM_TYPE;
    if (what === "look") return wire.open("GET", path, { fresh }, signal);
    if (this.#sent && !this.#known) {
      const { turn, body } = this.#sent;
      return wire.open("POST", `${path}/turns`, { accept, headers: { "Idempotency-Key": turn }, body, fresh }, signal);
    }
    const query = { ...(this.turnId && { turn: this.turnId }), ...(whole && { wait: String(timing.wait) }) };
    const headers: Record<string, string> = seqOf(this.state) ? { "Last-Event-ID": this.state.cursor } : {};
    return wire.open("GET", `${path}/events`, { accept, headers, query, fresh }, signal);
  }

  async *#answer(response: Response, attempt: Attempt): AsyncGenerator<Update, void> {
    const kind = response.headers.get("content-type")?.split(";")[0]?.trim();
    if (response.status === 204) {
      this.#ended("over");
    } else if (!response.ok) {
      const { status: code, pause } = (this.refusal = await problem(response));
      this.#ended("refused", { code, pause });
    } else if (kind === STREAM_TYPE) {
      yield* this.#stream(response, response.body!.getReader(), attempt);
    } else {
      yield* this.#read(response, attempt);
    }
  }

  async *#stream(
    response: Response, reader: ReadableStreamDefaultReader<Uint8Array>, attempt: Attempt,
  ): AsyncGenerator<Update, void> {
    const decode = decoder(this.#means.maxBytes);
    for (;;) {
      const { done, value } = await unbroken(reader.read());
      if (done) return this.#ended("broke");
      attempt.byte();
      if (this.#show(this.#connected)) yield this.#update();
      for (const message of decode(value)) {
        if (message.event === "stream.closing") {
          const { reason, retry_ms } = JSON.parse(message.data);
          return this.#ended("closed", { reason, pause: retry_ms / 1000 || 0 });
        }
        if (message.event === "auth.expiring") void this.#renew(response, attempt);
        if (!message.id) continue;
        const update = await this.#take(message, attempt);
        if (update) yield update;
        if (ended(this.#stands?.status)) return this.#ended("read");
      }
    }
  }

  /** A stream that is not prolonged is resumed: whatever fails here is no failure of the run. */
  async #renew(response: Response, { signal }: Attempt): Promise<void> {
    const { wire } = this.#means;
    const body = { stream: response.headers.get("legato-stream") };
    if (!wire.renews || this.#renewing) return;
    this.#renewing = true;
    await wire.ask("POST", `${sessionPath(this.session)}/auth`, { body, fresh: true }, signal).catch(() => {});
    this.#renewing = false;
  }

  #take({ event, data }: Message, attempt: Attempt): Promise<Update | undefined> {
    const fields = JSON.parse(data);
    return event === "snapshot" ? this.#replace(fields, attempt) : this.#reduce(fields, attempt);
  }

  /** A long poll's answer, a snapshot, or the 202 of a turn started without a stream. */
  async *#read(response: Response, attempt: Attempt): AsyncGenerator<Update, void> {
    const fields = JSON.parse(await unbroken(response.text()));
    const lived = attempt.age;
    attempt.byte();
    this.#show(this.#connected);
    if (response.status === 202) this.#known = attempt.moved = true;
    else if (!("cursor" in fields)) throw new TypeError();
    const found = "active" in fields ? fields : fields.snapshot;
    const updates = [found && (await this.#replace(found, attempt))];
    for (const event of fields.events ?? []) updates.push(await this.#reduce(event, attempt));
    yield* updates.filter(Boolean);
    this.#ended("read", { lived });
  }

  // What the answers change.

  async #replace(fields: unknown, attempt: Attempt): Promise<Update | undefined> {
    const state = reuse(this.state, restore(fields));
    this.#known = true;
    if (this.turnId) this.#last = this.turn;
    return this.#move(state, attempt, true);
  }

  async #reduce(event: Event, attempt: Attempt): Promise<Update | undefined> {
    const { seq, epoch, turn, type } = event;
    if (!(seq > 0 && epoch > 0 && turn && type)) throw new TypeError();
    this.#known = true;
    const update = await this.#move(reduce(this.state, event), attempt, false);
    return update && { ...update, event };
  }

  async #move(state: SessionState, attempt: Attempt, now: boolean): Promise<Update | undefined> {
    if (state === this.state) return;
    attempt.moved = true;
    this.state = state;
    await this.#save(now);
    this.#show(this.#connected);
    return this.#update();
  }

  /** The turn that another run of this session has sent stays kept. */
  #save(now: boolean): Promise<void> {
    const own = ended(this.#stands?.status) ? null : this.#sent;
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
    const { status, state, action } = this;
    return { status, state, action };
  }

  #ended(kind: Outcome["kind"], more?: Partial<Outcome>): void {
    const { moved, lived } = this.#attempt!;
    this.#outcome = { kind, turn: this.#stands?.status, moved, lived, ...more };
  }

  get #stands(): TurnState | undefined {
    return this.turnId ? find(this.state, this.turnId) : (this.state.active ?? undefined);
  }

  get #connected(): Status {
    return this.#stands?.status ?? "streaming";
  }
}
