/** The requests of the wire contract over fetch, and what their answers mean. No decisions. */
/** A bearer token, or where to get one: called before every request, with true when the last one no longer serves. */
export type Token = string | ((fresh: boolean) => string | Promise<string>);
export type Fetch = (url: string, init: RequestInit) => Promise<Response>;
export declare const JSON_TYPE = "application/json";
export declare const STREAM_TYPE = "text/event-stream";
/** What the service refused: `status` is HTTP's, `code` the problem's; `turn` is the active one of `session_busy`,
 * `path` the field of `invalid`, `pause` the seconds that it asks to wait. */
export declare class LegatoError extends Error {
    readonly code: string;
    readonly status: number;
    readonly turn: string | undefined;
    readonly path: string | undefined;
    readonly pause: number | undefined;
    constructor(code: string, message: string, status?: number, more?: {
        turn?: string;
        path?: string;
        pause?: number;
    });
}
/** The network, or whoever gives the token, failed: nothing is known of the request. */
export declare class Broken extends Error {
    constructor(cause: unknown);
}
export declare function unbroken<T>(work: Promise<T>): Promise<T>;
/** Aborts its request when nothing has come for `silence` seconds, or when it is told to. */
export declare class Watch {
    #private;
    silent: boolean;
    constructor(silence: number);
    get signal(): AbortSignal;
    byte(): void;
    stop(): void;
}
export interface Request {
    readonly accept?: string;
    readonly headers?: Record<string, string>;
    readonly query?: Record<string, string>;
    readonly body?: unknown;
    readonly fresh?: boolean;
}
export declare class Wire {
    #private;
    constructor(base: string, token: Token, fetch: Fetch, silence: number);
    /** There is another token to be had. */
    get renews(): boolean;
    /** The answer, its body unread. Rejects with Broken. */
    open(method: string, path: string, request: Request, signal: AbortSignal): Promise<Response>;
    /** The JSON of a whole answer, null for an empty one. Rejects with LegatoError when refused, after one fresh token,
     * and with Broken. */
    ask(method: string, path: string, request?: Request, outer?: AbortSignal): Promise<any>;
}
/** Throws LegatoError `invalid` for what can be no id. */
export declare function checked(path: string, value: string): string;
export declare const sessionPath: (session: string) => string;
/** The status; a redirect that a browser hides is one. */
export declare const statusOf: (response: Response) => number;
/** The error that an answer stands for (RFC 9457); one without a problem's JSON keeps its status. */
export declare function problem(response: Response): Promise<LegatoError>;
/** Seconds of the `Retry-After` header; undefined where it is absent or a date. */
export declare function retryAfter(response: Response): number | undefined;
