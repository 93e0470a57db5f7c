/** What a client keeps so that a reload costs it nothing: one entry a session, written whole. */
import { empty, restore, type SessionState } from "./reducer.ts";

/** A turn as it is sent, again and again under the same id. `body` is the JSON. */
export interface Sent {
  readonly turn: string;
  readonly body: { readonly [name: string]: any };
}

/** Cursor and state as one value; `sent`, written before it is sent, is the turn whose end is not seen yet. */
export interface Saved {
  readonly state: SessionState;
  readonly sent: Sent | null;
}

type Maybe<T> = T | Promise<T>;

/** `sessionStorage`, or what React Native has in its place. */
export interface Storage {
  getItem(key: string): Maybe<string | null>;
  setItem(key: string, value: string): Maybe<unknown>;
  removeItem(key: string): Maybe<unknown>;
}

/** Seconds between two writes of a running turn's state; what matters is written at once. */
const SAVE_EVERY = 1;

/** Entries are kept in memory too: a storage that is full, or not there, costs the reload and nothing else. */
export class Keep {
  readonly #kept = new Map<string, Saved>();
  readonly #dirty = new Set<string>();
  readonly #storage: Storage | undefined;
  readonly #prefix: string;
  readonly #clock: () => number;
  #written = 0;

  constructor(storage: Storage | undefined, principal: string, clock: () => number) {
    this.#storage = storage;
    this.#prefix = `legato:${principal}:`;
    this.#clock = clock;
  }

  async load(session: string): Promise<Saved> {
    const kept = this.#kept.get(session);
    if (kept) return kept;
    const stored = (await this.#stored(session)) ?? { state: empty(session), sent: null };
    if (!this.#kept.has(session)) this.#kept.set(session, stored);
    return this.#kept.get(session)!;
  }

  /** Changes what is kept, at once; `now`: it is written before this returns. */
  async change(session: string, change: (saved: Saved) => Saved, now: boolean): Promise<void> {
    await this.load(session);
    this.#kept.set(session, change(this.#kept.get(session)!));
    this.#dirty.add(session);
    if (now || this.#clock() - this.#written >= SAVE_EVERY) await this.flush();
  }

  async flush(): Promise<void> {
    this.#written = this.#clock();
    const dirty = [...this.#dirty];
    this.#dirty.clear();
    for (const session of dirty) await this.#write(session, this.#kept.get(session)!);
  }

  async forget(session: string): Promise<void> {
    this.#kept.delete(session);
    this.#dirty.delete(session);
    await this.#storage?.removeItem(this.#prefix + session);
  }

  async #stored(session: string): Promise<Saved | null> {
    try {
      const { state, sent } = JSON.parse((await this.#storage?.getItem(this.#prefix + session)) ?? "");
      return { state: restore(state), sent };
    } catch {
      return null;
    }
  }

  /** Where the whole does not fit, what was sent is kept at least. */
  async #write(session: string, saved: Saved): Promise<void> {
    for (const state of [saved.state, empty(session)]) {
      try {
        await this.#storage?.setItem(this.#prefix + session, JSON.stringify({ ...saved, state }));
        return;
      } catch {
        continue;
      }
    }
  }
}
