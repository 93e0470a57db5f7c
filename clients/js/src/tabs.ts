/**
 * One connection for all tabs that show a session: the one that holds the session's lock leads and tells the others.
 *
 * A tab that closes lets go of its lock, and the next one leads. Who has heard nothing for `stale` seconds asks; a
 * leader that does not answer within `tab` seconds is frozen, and loses its lock to a tab that is seen. Everybody
 * reduces what is told, so a new leader goes on from its own cursor: nothing is missed, and nothing counts twice.
 */
import type { Means } from "./means.ts";

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
}

/** The browser's own, where it has both. */
export function ownSharing(): Sharing | undefined {
  const locks = globalThis.navigator?.locks;
  if (!locks || typeof BroadcastChannel !== "function") return undefined;
  return { locks: locks as unknown as Locks, channel: (name) => new BroadcastChannel(name) };
}

export class Tabs {
  readonly #means: Means;
  readonly #name: string;
  readonly #member: Member;
  readonly #channel: Channel;
  readonly #closed = new AbortController();
  #queue = new AbortController();
  #nap = new AbortController();
  #leads = false;
  #heard = 0;
  #weak = false;

  constructor(means: Means, sharing: Sharing, name: string, member: Member) {
    this.#means = means;
    this.#name = name;
    this.#member = member;
    this.#channel = sharing.channel(this.#name);
    this.#channel.onmessage = ({ data }) => this.#hear(data);
    void this.#live(sharing.locks);
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

  async #live(locks: Locks): Promise<void> {
    while (!this.#closed.signal.aborted) {
      const { signal } = (this.#queue = new AbortController());
      void this.#doubt(this.#queue);
      await this.#stand(locks, { signal });
      if (signal.aborted && !this.#closed.signal.aborted) await this.#stand(locks, { steal: true });
    }
  }

  /** Leads once the lock is given, until it is taken away or the tab is closed. */
  async #stand(locks: Locks, options: { signal: AbortSignal } | { steal: true }): Promise<void> {
    const mine = new AbortController();
    const stop = () => mine.abort();
    const lead = () => {
      this.#leads = true;
      return this.#member.lead(mine.signal);
    };
    this.#closed.signal.addEventListener("abort", stop);
    await locks.request(this.#name, options, lead).catch(() => {});
    this.#leads = false;
    stop();
  }

  /** Leaves the queue when the leader does not answer. */
  async #doubt(queue: AbortController): Promise<void> {
    while (!queue.signal.aborted && !this.#leads) {
      const before = this.#heard;
      this.ask();
      await this.#rest(this.#means.timing.tab);
      if (this.#leads || queue.signal.aborted) return;
      if ((this.#heard === before || this.#weak) && this.#means.lifecycle.visible()) return queue.abort();
      await this.#quiet();
    }
  }

  /** Until nothing has been heard for a while, or the page is back. */
  async #quiet(): Promise<void> {
    let before;
    do {
      before = this.#heard;
      if (await this.#rest(this.#means.timing.stale)) return;
    } while (this.#heard !== before && !this.#leads);
  }

  async #rest(seconds: number): Promise<boolean> {
    this.#nap = new AbortController();
    await this.#means.sleep(seconds, this.#nap.signal);
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
