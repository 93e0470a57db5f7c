/**
 * One connection for all tabs that show a session: the one that holds the session's lock leads and tells the others.
 *
 * A tab that closes lets go of its lock, and the next one leads. Who has heard nothing for `stale` seconds asks; a
 * leader that does not answer within `tab` seconds is frozen, and loses its lock to a tab that is seen. Everybody
 * reduces what is told, so a new leader goes on from its own cursor: nothing is missed, and nothing counts twice.
 */
import type { Timing } from "./policy.ts";

/** What a browser's BroadcastChannel is here. */
export interface Channel {
  onmessage: ((message: any) => void) | null;
  postMessage(data: unknown): void;
  close(): void;
}

export interface Locks {
  request(name: string, options: { signal?: AbortSignal; steal?: boolean }, held: () => Promise<void>): Promise<unknown>;
}

export interface Sharing {
  readonly locks: Locks;
  readonly channel: (name: string) => Channel;
}

/** A tab's part. `lead` follows the session until its signal is aborted; `answer` is what the leader says to who has
 * that cursor; `weak`: it leads badly, for it is hidden and its line is down. */
export interface Member {
  lead(signal: AbortSignal): Promise<void>;
  heard(told: any): void;
  hurried(): void;
  answer(cursor: string): object;
  cursor(): string;
  weak(): boolean;
  visible(): boolean;
}

export class Tabs {
  readonly #channel: Channel;
  readonly #name: string;
  readonly #sharing: Sharing;
  readonly #member: Member;
  readonly #timing: Timing;
  readonly #sleep: (seconds: number, signal: AbortSignal) => Promise<void>;
  readonly #closed = new AbortController();
  #queue = new AbortController();
  #nap = new AbortController();
  #leads = false;
  #heard = 0;
  #weak = false;

  constructor(
    name: string, sharing: Sharing, member: Member, timing: Timing,
    sleep: (seconds: number, signal: AbortSignal) => Promise<void>,
  ) {
    this.#name = name;
    this.#sharing = sharing;
    this.#member = member;
    this.#timing = timing;
    this.#sleep = sleep;
    this.#channel = sharing.channel(name);
    this.#channel.onmessage = ({ data }) => this.#hear(data);
    void this.#live();
  }

  get leads(): boolean {
    return this.#leads;
  }

  tell(told: object): void {
    this.#post({ told });
  }

  /** What the session waits for has come, says whoever brought it. */
  hurry(): void {
    this.#post({ hurry: true });
  }

  ask(): void {
    this.#post({ ask: this.#member.cursor() });
  }

  /** The page is back: is the leader there? */
  wake(): void {
    this.#nap.abort();
  }

  close(): void {
    this.#closed.abort();
    this.#queue.abort();
    this.#nap.abort();
    this.#channel.onmessage = null;
    this.#channel.close();
  }

  async #live(): Promise<void> {
    while (!this.#closed.signal.aborted) {
      this.#queue = new AbortController();
      void this.#doubt(this.#queue);
      await this.#stand({ signal: this.#queue.signal });
      if (this.#queue.signal.aborted && !this.#closed.signal.aborted) await this.#stand({ steal: true });
    }
  }

  /** Leads once the lock is given, until it is taken away or the tab is closed. */
  async #stand(options: { signal: AbortSignal } | { steal: true }): Promise<void> {
    const mine = new AbortController();
    const stop = () => mine.abort();
    const lead = async () => {
      this.#leads = true;
      await this.#member.lead(mine.signal);
    };
    this.#closed.signal.addEventListener("abort", stop);
    await this.#sharing.locks.request(this.#name, options, lead).catch(() => {});
    this.#closed.signal.removeEventListener("abort", stop);
    this.#leads = false;
    stop();
  }

  /** Leaves the queue when the leader does not answer. */
  async #doubt(queue: AbortController): Promise<void> {
    while (!queue.signal.aborted && !this.#leads) {
      const before = this.#heard;
      this.ask();
      await this.#rest(this.#timing.tab);
      if (this.#leads || queue.signal.aborted) return;
      if ((this.#heard === before || this.#weak) && this.#member.visible()) return queue.abort();
      await this.#quiet();
    }
  }

  /** Until nothing has been heard for a while, or the page is back. */
  async #quiet(): Promise<void> {
    let before;
    do {
      before = this.#heard;
      if (await this.#rest(this.#timing.stale)) return;
    } while (this.#heard !== before && !this.#leads);
  }

  async #rest(seconds: number): Promise<boolean> {
    this.#nap = new AbortController();
    await this.#sleep(seconds, this.#nap.signal);
    return this.#nap.signal.aborted;
  }

  #hear({ told, ask, hurry }: { told?: any; ask?: string; hurry?: boolean }): void {
    if (this.#leads) {
      if (ask) this.#post({ told: { ...this.#member.answer(ask), weak: this.#member.weak() } });
      if (hurry) this.#member.hurried();
    } else if (told) {
      this.#heard++;
      this.#weak = told.weak ?? false;
      this.#member.heard(told);
    }
  }

  #post(data: object): void {
    if (!this.#closed.signal.aborted) this.#channel.postMessage(data);
  }
}
