import type { LegatoClient, Session, View } from "./legato-client.ts";
export type Shown = View & Pick<Session, "send" | "cancel" | "decide" | "approve" | "supply" | "resume">;
/** What is to be shown of a session, and what can be done in it; the same functions at every render. */
export declare function useSession(client: LegatoClient, name: string): Shown;
