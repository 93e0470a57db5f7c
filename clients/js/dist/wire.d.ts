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
    readonly turn?: string;
    readonly path?: string;
    readonly pause: number;
    constructor(message: string, fields: {
        code: string;
        status?: number;
        turn?: string;
        path?: string;
        pause?: number;
    });
}
/** The network, or whoever gives the token, failed: nothing is known of the request. */
export declare class Broken extends Error {
}
export declare function unbroken<T>(work: Promise<T>): Promise<T>;
/** One request: aborted when nothing has come for `silence` seconds, or when it is told to stop. */
export declare class Attempt {
    #private;
    silent: boolean;
    /** It brought news. */
    moved: boolean;
    constructor(silence: number, clock: () => number);
    get signal(): AbortSignal;
    /** Seconds from its first byte to its last. */
    get lived(): number;
    /** Seconds since anything came. */
    get age(): number;
    byte(): void;
    stop(): void;
}
export interface Request {
    readonly accept?: string;
    readonly headers?: Record<string, string>;
    readonly query?: Record<string, string>;
    readonly body?: unknown;
    readonly fresh?: boolean | undefined;
}
export declare class Wire {
    #private;
    constructor(base: string, token: Token, fetch: Fetch, attempt: () => Attempt);
    /** There is another token to be had. */
    get renews(): boolean;
    /** The answer, its body unread. Rejects with Broken. */
    open(method: string, path: string, request: Request, signal: AbortSignal): Promise<Response>;
    /** The JSON of a whole answer, null for an empty one. Rejects with LegatoError when refused, after one fresh token,
     * and with Broken. */
    ask(method: string, path: string, request?: Request, signal?: AbortSignal): Promise<any>;
}
/** Throws LegatoError `invalid` for what can be no id. */
export declare function checked(path: string, value: string): string;
export declare const sessionPath: (session: string) => string;
/** The error that an answer stands for (RFC 9457); one without a problem's JSON keeps its status. A redirect that a
 * browser hides is one, and `Retry-After` counts in seconds. */
export declare function problem(response: Response): Promise<LegatoError>;
