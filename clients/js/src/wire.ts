/** The requests of the wire contract over fetch, and what their answers mean. No decisions. */

/** A bearer token, or where to get one: called before every request, with true when the last one no longer serves. */
export type Token = string | ((fresh: boolean) => string | Promise<string>);
export type Fetch = (url: string, init: RequestInit) => Promise<Response>;

export const JSON_TYPE = "application/json";
export const STREAM_TYPE = "text/event-stream";

/** What the service refused: `status` is HTTP's, `code` the problem's; `turn` is the active one of `session_busy`,
 * `path` the field of `invalid`, `pause` the seconds that it asks to wait. */
export class LegatoError extends Error {
  declare readonly code: string;
  declare readonly status: number;
  declare readonly turn?: string;
  declare readonly path?: string;
  declare readonly pause: number;

  constructor(message: string, fields: { code: string; status?: number; turn?: string; path?: string; pause?: number }) {
    super(message);
    Object.assign(this, { name: "LegatoError", status: 0, pause: 0 }, fields);
  }
}

/** The network, or whoever gives the token, failed: nothing is known of the request. */
export class Broken extends Error {}

export async function unbroken<T>(work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (cause) {
    throw new Broken(String(cause), { cause });
  }
}

/** One request: aborted when nothing has come for `silence` seconds, or when it is told to stop. */
export class Attempt {
  readonly #controller = new AbortController();
  readonly #silence: number;
  readonly #clock: () => number;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #first: number | undefined;
  #last: number;
  silent = false;
  /** It brought news. */
  moved = false;

  constructor(silence: number, clock: () => number) {
    this.#silence = silence;
    this.#clock = clock;
    this.#last = clock();
    this.#wait();
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** Seconds from its first byte to its last. */
  get lived(): number {
    return this.#last - (this.#first ?? this.#last);
  }

  /** Seconds since anything came. */
  get age(): number {
    return this.#clock() - this.#last;
  }

  byte(): void {
    this.#last = this.#clock();
    this.#first ??= this.#last;
    this.#wait();
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.#controller.abort();
  }

  #wait(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.silent = true;
      this.stop();
    }, this.#silence * 1000);
  }
}

export interface Request {
  readonly accept?: string;
  readonly headers?: Record<string, string>;
  readonly query?: Record<string, string>;
  readonly body?: unknown;
  readonly fresh?: boolean | undefined;
}

export class Wire {
  readonly #base: string;
  readonly #token: Token;
  readonly #fetch: Fetch;
  readonly #attempt: () => Attempt;

  constructor(base: string, token: Token, fetch: Fetch, attempt: () => Attempt) {
    this.#base = base.replace(/\/+$/, "");
    this.#token = token;
    this.#fetch = fetch;
    this.#attempt = attempt;
  }

  /** There is another token to be had. */
  get renews(): boolean {
    return typeof this.#token !== "string";
  }

  /** The answer, its body unread. Rejects with Broken. */
  open(method: string, path: string, request: Request, signal: AbortSignal): Promise<Response> {
    return unbroken(this.#open(method, path, request, signal));
  }

  /** The JSON of a whole answer, null for an empty one. Rejects with LegatoError when refused, after one fresh token,
   * and with Broken. */
  async ask(method: string, path: string, request: Request = {}, signal?: AbortSignal): Promise<any> {
    const attempt = this.#attempt();
    signal?.addEventListener("abort", () => attempt.stop());
    try {
      let response = await this.open(method, path, request, attempt.signal);
      if (response.status === 401) response = await this.open(method, path, { ...request, fresh: true }, attempt.signal);
      if (!response.ok) throw await problem(response);
      const text = await unbroken(response.text());
      return text ? JSON.parse(text) : null;
    } finally {
      attempt.stop();
    }
  }

  async #open(method: string, path: string, request: Request, signal: AbortSignal): Promise<Response> {
    const { accept = JSON_TYPE, headers, query, body, fresh = false } = request;
    const token = typeof this.#token === "string" ? this.#token : await this.#token(fresh);
    const fixed: Record<string, string> = { Accept: accept, Authorization: `Bearer ${token}` };
    if (body) fixed["Content-Type"] = JSON_TYPE;
    const search = String(new URLSearchParams(query));
    return this.#fetch(this.#base + path + (search && `?${search}`), {
      method,
      headers: { ...fixed, ...headers },
      body: body ? JSON.stringify(body) : null,
      cache: "no-store",
      redirect: "manual",
      signal,
    });
  }
}

/** Throws LegatoError `invalid` for what can be no id. */
export function checked(path: string, value: string): string {
  if (/^[A-Za-z0-9][\w-]{0,63}$/.test(value)) return value;
  throw new LegatoError(`${JSON.stringify(value)} is no id`, { code: "invalid", path });
}

export const sessionPath = (session: string): string => `/v1/sessions/${checked("session", session)}`;

/** The error that an answer stands for (RFC 9457); one without a problem's JSON keeps its status. A redirect that a
 * browser hides is one, and `Retry-After` counts in seconds. */
export async function problem(response: Response): Promise<LegatoError> {
  const { code = "http", detail, turn, path } = (await response.json().catch(() => null)) ?? {};
  const status = response.status || 302;
  const pause = Number(response.headers.get("retry-after")) || 0;
  return new LegatoError(detail ?? `HTTP ${status}`, { code, status, turn, path, pause });
}
