import type { LegatoClient } from "./legato-client.ts";
import { type Session, type View } from "./session.ts";
export type Shown = View & Pick<Session, "send" | "cancel" | "decide" | "supply" | "resume">;
/** What is to be shown of a session, and what can be done in it; the same functions at every render. */
export declare function useSession(client: LegatoClient, name: string): Shown;
