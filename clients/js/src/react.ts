/** A session as a React hook. */
import { useMemo, useSyncExternalStore } from "react";
import type { LegatoClient, Session, View } from "./legato-client.ts";

export type Shown = View & Pick<Session, "send" | "cancel" | "decide" | "approve" | "supply" | "resume">;

/** What is to be shown of a session, and what can be done in it; the same functions at every render. */
export function useSession(client: LegatoClient, name: string): Shown {
  const session = useMemo(() => client.session(name), [client, name]);
  const view = useSyncExternalStore(session.subscribe, session.view, session.view);
  const { send, cancel, decide, approve, supply, resume } = session;
  return useMemo(
    () => ({ ...view, send, cancel, decide, approve, supply, resume }),
    [view, send, cancel, decide, approve, supply, resume],
  );
}
