/** A real HTTP server whose answers a test writes down: one request a connection, one answer a request, in order. */
import { createServer, type Server, type Socket } from "node:net";
import type { AddressInfo } from "node:net";

export type Answer = (socket: Socket) => void | Promise<void>;
export type Piece = string | Uint8Array;

export interface Asked {
  method: string;
  path: string;
  query: Record<string, string>;
  headers: Record<string, string>;
  body: any;
  cursor: string | undefined;
}

/** `requests` is what was asked. A request beyond the script is answered 501, which no client repeats quietly. */
export class Scripted implements AsyncDisposable {
  readonly requests: Asked[] = [];
  readonly #script: Answer[];
  readonly #sockets = new Set<Socket>();
  readonly #server: Server;
  #asked: (() => void) | undefined;

  constructor(script: Answer[]) {
    this.#script = script;
    this.#server = createServer((socket) => this.#accept(socket));
  }

  async listen(): Promise<this> {
    await new Promise<void>((ready) => this.#server.listen(0, "127.0.0.1", ready));
    return this;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  get cursors(): (string | undefined)[] {
    return this.requests.map((request) => request.cursor);
  }

  /** Until that many requests have come. */
  async asked(count: number): Promise<void> {
    while (this.requests.length < count) await new Promise<void>((asked) => (this.#asked = asked));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    await new Promise((closed) => this.#server.close(closed));
  }

  #accept(socket: Socket): void {
    let head = "";
    this.#sockets.add(socket);
    socket.on("error", () => {});
    socket.on("close", () => this.#sockets.delete(socket));
    socket.on("data", (data) => {
      if (head === "done") return;
      head += data.toString("utf8");
      const asked = parsed(head);
      if (!asked) return;
      head = "done";
      this.requests.push(asked);
      void (this.#script[this.requests.length - 1] ?? json({}, 501))(socket);
      this.#asked?.();
    });
  }
}

export const serving = (...script: Answer[]): Promise<Scripted> => new Scripted(script).listen();

function parsed(text: string): Asked | undefined {
  const end = text.indexOf("\r\n\r\n");
  if (end < 0) return undefined;
  const [first = "", ...lines] = text.slice(0, end).split("\r\n");
  const headers = Object.fromEntries(lines.map((line) => [line.split(": ")[0]!.toLowerCase(), line.slice(line.indexOf(": ") + 2)]));
  const body = text.slice(end + 4);
  if (Buffer.byteLength(body) < Number(headers["content-length"] ?? 0)) return undefined;
  const [method = "", target = ""] = first.split(" ");
  const url = new URL(target, "http://x");
  const query = Object.fromEntries(url.searchParams);
  return { method, path: url.pathname, query, headers, body: body ? JSON.parse(body) : undefined, cursor: headers["last-event-id"] };
}

function head(status: number, kind: string, headers: Record<string, string | number> = {}): string {
  const more = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`).join("");
  return `HTTP/1.1 ${status} X\r\nContent-Type: ${kind}\r\nConnection: close\r\n${more}\r\n`;
}

export interface End {
  hang?: boolean;
  reset?: boolean;
  headers?: Record<string, string>;
}

/** A stream of pieces that then ends cleanly, hangs, or is reset. */
export function stream(pieces: Piece | Piece[] = [], { hang, reset, headers }: End = {}): Answer {
  return (socket) => {
    socket.write(head(200, "text/event-stream; charset=utf-8", headers));
    for (const piece of [pieces].flat()) socket.write(piece);
    if (reset) socket.resetAndDestroy();
    else if (!hang) socket.end();
  };
}

export function json(body: unknown, status = 200, headers: Record<string, string | number> = {}): Answer {
  return (socket) => {
    const data = status === 204 ? "" : JSON.stringify(body);
    const length = status === 204 ? {} : { "Content-Length": Buffer.byteLength(data) };
    const kind = status < 400 ? "application/json" : "application/problem+json";
    socket.end(head(status, kind, { ...length, ...headers }) + data);
  };
}

export function problem(status: number, code: string, more: Record<string, any> = {}): Answer {
  const { retryAfter, ...fields } = more;
  return json({ code, detail: `because of ${code}`, ...fields }, status, retryAfter ? { "Retry-After": retryAfter } : {});
}

/** The request was read; its answer never comes. */
export const dropped: Answer = (socket) => void socket.resetAndDestroy();
/** Nothing comes, and nothing ends. */
export const hanging: Answer = () => {};
export const NO_CONTENT = json(null, 204);
export const signIn: Answer = (socket) => void socket.end(head(200, "text/html") + "<html>sign in</html>");
