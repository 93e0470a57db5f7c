import type { Action, Json, LegatoClient, Sent, SessionState, Status } from "./legato-client.ts";
import type { TurnOptions } from "./legato-client.ts";
import type { Part } from "./means.ts";
/** What is to be shown. `sent` is a turn of this tab that `state` does not have yet, `error` why nothing goes on. */
export interface View {
    readonly status: Status;
    readonly state: SessionState;
    readonly action?: Action | undefined;
    readonly sent?: Sent | null;
    readonly error?: Error | undefined;
}
/** A session to be shown: the same object for the same client and name. */
export declare function sessionOf(client: LegatoClient, name: string): Session;
/** Its functions may be taken off it. They reject with LegatoError, or with Broken where the network fails. */
export declare class Session implements Part {
    #private;
    readonly session: string;
    constructor(client: LegatoClient, session: string);
    /** The same object until something changes. */
    view: () => View;
    /** Opens the session with its first listener, and leaves it after the last one. */
    subscribe: (listener: () => void) => (() => void);
    /** Sends a turn; its id, once the service has it. */
    send: (input: Json, options?: TurnOptions) => Promise<string>;
    /** Asks the owner of the active turn to stop. */
    cancel: (reason?: string) => Promise<void>;
    /** Answers a question of the active turn. */
    decide: (request: string, approved: boolean, note?: string) => Promise<void>;
    /** Supplies a credential that a tool of the active turn waits for. */
    supply: (name: string, value: string, expiresIn?: number) => Promise<void>;
    /** Reaches for the service again: what `action: "resume"` stands for. */
    resume: () => void;
    /** What the session waits for has come: it is reached for now. */
    hurry(): void;
    /** Page or network are back. */
    wake(): void;
    /** Its run sees that for itself. */
    lose(): void;
    /** Leaves the session; it goes on where it is. */
    close(): void;
}
