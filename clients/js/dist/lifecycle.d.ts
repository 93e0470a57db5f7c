/** What happens to the page, or the app: it comes back, loses its network, goes away. */
export interface Lifecycle {
    visible(): boolean;
    /** Calls these until what it returns is called: `wake` when page or network are back, `lose` when the network is
     * gone, `hide` when the page may not come back. */
    listen(on: {
        wake: () => void;
        lose: () => void;
        hide: () => void;
    }): () => void;
}
export declare const NOWHERE: Lifecycle;
export declare function page(window: Window): Lifecycle;
