/** A session as a page shows it: followed while anybody listens, by one connection for all tabs. */
import type { LegatoClient, TurnOptions } from "./client.ts";
import type { Means } from "./means.ts";
import { type Action, type Status } from "./policy.ts";
import { type Json, type SessionState } from "./reducer.ts";
import type { Sent } from "./store.ts";
/** What is to be shown. `sent` is a turn of this tab that `state` does not have yet, `error` why nothing goes on. */
export interface View {
    readonly status: Status;
    readonly state: SessionState;
    readonly action?: Action | undefined;
    readonly sent?: Sent | null;
    readonly error?: Error | undefined;
}
/** Its functions may be taken off it. They reject with LegatoError, or with what the network failed of. */
export declare class Session {
    #private;
    readonly name: string;
    constructor(client: LegatoClient, means: Means, name: string);
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
    approve: (request: string, note?: string) => Promise<void>;
    /** Supplies a credential that a tool of the active turn waits for. */
    supply: (name: string, value: string, expiresIn?: number) => Promise<void>;
    /** Reaches for the service again: what `action: "resume"` stands for. */
    resume: () => void;
    /** What the session waits for has come: it is reached for now. */
    hurry(): void;
    /** Page or network are back. */
    wake(): void;
}
