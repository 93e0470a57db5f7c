/** What happens to the page, or the app: it comes back, loses its network, goes away. */
export interface Lifecycle {
  visible(): boolean;
  /** Calls these until what it returns is called: `wake` when page or network are back, `lose` when the network is
   * gone, `hide` when the page may not come back. */
  listen(on: { wake: () => void; lose: () => void; hide: () => void }): () => void;
}

export const NOWHERE: Lifecycle = { visible: () => true, listen: () => () => {} };

export function page(window: Window): Lifecycle {
  const { document } = window;
  return {
    visible: () => document.visibilityState === "visible",
    listen({ wake, lose, hide }) {
      const listening = new AbortController();
      const { signal } = listening;
      window.addEventListener("online", wake, { signal });
      window.addEventListener("pageshow", wake, { signal });
      window.addEventListener("offline", lose, { signal });
      window.addEventListener("pagehide", hide, { signal });
      document.addEventListener("visibilitychange", () => (document.hidden ? hide : wake)(), { signal });
      return () => listening.abort();
    },
  };
}
