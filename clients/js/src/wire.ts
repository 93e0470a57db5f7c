/** The requests of the wire contract over fetch, and what their answers mean. No decisions. */

/** A bearer token, or where to get one: called before every request, with true when the last one no longer serves. */
export type Token = string | ((fresh: boolean) => string | Promise<string>);
export type Fetch = (url: string, init: RequestInit) => Promise<Response>;

export const JSON_TYPE = "application/json";
export const STREAM_TYPE = "text/event-stream";

/** What the service refused: `status` is HTTP's, `code` the problem's; `turn` is the active one of `session_busy`,
 * `path` the field of `invalid`, `pause` the seconds that it asks to wait. */
export class LegatoError extends Error {
  readonly code: string;
  readonly status: number;
  readonly turn: string | undefined;
  readonly path: string | undefined;
  readonly pause: number | undefined;

  constructor(code: string, message: string, status = 0, more: { turn?: string; path?: string; pause?: number } = {}) {
    super(message);
    this.name = "LegatoError";
    this.code = code;
    this.status = status;
    this.turn = more.turn;
    this.path = more.path;
    this.pause = more.pause;
  }
}

/** The network, or whoever gives the token, failed: nothing is known of the request. */
export class Broken extends Error {
  constructor(cause: unknown) {
    super(`the connection broke: ${cause}`, { cause });
  }
}

export async function unbroken<T>(work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (failure) {
    throw new Broken(failure);
  }
}

/** Aborts its request when nothing has come for `silence` seconds, or when it is told to. */
export class Watch {
  readonly #controller = new AbortController();
  readonly #silence: number;
  #timer: ReturnType<typeof setTimeout> | undefined;
  silent = false;

  constructor(silence: number) {
    this.#silence = silence;
    this.byte();
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  byte(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.silent = true;
      this.stop();
    }, this.#silence * 1000);
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.#controller.abort();
  }
}

export interface Request {
  readonly accept?: string;
  readonly headers?: Record<string, string>;
  readonly query?: Record<string, string>;
  readonly body?: unknown;
  readonly fresh?: boolean;
}

export class Wire {
  readonly #base: string;
  readonly #token: Token;
  readonly #fetch: Fetch;
  readonly #silence: number;

  constructor(base: string, token: Token, fetch: Fetch, silence: number) {
    this.#base = base.replace(/\/+$/, "");
    this.#token = token;
    this.#fetch = fetch;
    this.#silence = silence;
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
  async ask(method: string, path: string, request: Request = {}, outer?: AbortSignal): Promise<any> {
    const watch = new Watch(this.#silence);
    const stop = () => watch.stop();
    outer?.addEventListener("abort", stop);
    try {
      let response = await this.open(method, path, request, watch.signal);
      if (response.status === 401) {
        response = await this.open(method, path, { ...request, fresh: true }, watch.signal);
      }
      if (!response.ok) throw await problem(response);
      const text = await unbroken(response.text());
      return text ? JSON.parse(text) : null;
    } finally {
      outer?.removeEventListener("abort", stop);
      stop();
    }
  }

  async #open(method: string, path: string, request: Request, signal: AbortSignal): Promise<Response> {
    const { accept = JSON_TYPE, headers, query, body, fresh = false } = request;
    const token = typeof this.#token === "string" ? this.#token : await this.#token(fresh);
    const search = query && Object.keys(query).length ? `?${new URLSearchParams(query)}` : "";
    const kind: Record<string, string> = body === undefined ? {} : { "Content-Type": JSON_TYPE };
    return this.#fetch(this.#base + path + search, {
      method,
      headers: { Accept: accept, Authorization: `Bearer ${token}`, ...kind, ...headers },
      body: body === undefined ? null : JSON.stringify(body),
      cache: "no-store",
      redirect: "manual",
      signal,
    });
  }
}

/** Throws LegatoError `invalid` for what can be no id. */
export function checked(path: string, value: string): string {
  if (/^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/.test(value)) return value;
  throw new LegatoError("invalid", `${JSON.stringify(value)} is no id`, 0, { path });
}

export const sessionPath = (session: string): string => `/v1/sessions/${checked("session", session)}`;

/** The status; a redirect that a browser hides is one. */
export const statusOf = (response: Response): number => response.status || 302;

/** The error that an answer stands for (RFC 9457); one without a problem's JSON keeps its status. */
export async function problem(response: Response): Promise<LegatoError> {
  const fields = (await response.json().catch(() => null)) ?? {};
  const status = statusOf(response);
  const pause = retryAfter(response);
  const more = { turn: fields.turn, path: fields.path, ...(pause === undefined ? {} : { pause }) };
  return new LegatoError(String(fields.code ?? "http"), fields.detail ?? fields.title ?? `HTTP ${status}`, status, more);
}

/** Seconds of the `Retry-After` header; undefined where it is absent or a date. */
export function retryAfter(response: Response): number | undefined {
  const value = response.headers.get("retry-after") ?? "";
  return /^\d{1,6}$/.test(value) ? Number(value) : undefined;
}
