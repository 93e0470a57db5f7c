/** A session as a React hook. */
import { useMemo, useSyncExternalStore } from "react";
import type { LegatoClient } from "./legato-client.ts";
import { sessionOf, type Session, type View } from "./session.ts";

export type Shown = View & Pick<Session, "send" | "cancel" | "decide" | "supply" | "resume">;

/** What is to be shown of a session, and what can be done in it; the same functions at every render. */
export function useSession(client: LegatoClient, name: string): Shown {
  const session = useMemo(() => sessionOf(client, name), [client, name]);
  const view = useSyncExternalStore(session.subscribe, session.view, session.view);
  return useMemo(() => {
    const { send, cancel, decide, supply, resume } = session;
    return { ...view, send, cancel, decide, supply, resume };
  }, [session, view]);
}
