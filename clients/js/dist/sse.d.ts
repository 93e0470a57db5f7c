/** One dispatched frame; `id` is what this frame itself carried. */
export interface Message {
    readonly event: string;
    readonly data: string;
    readonly id: string | null;
}
/** A frame, or a line, is larger than a client takes. */
export declare class FrameTooLarge extends Error {
    readonly code = "frame_too_large";
}
/** Gives the messages that a chunk completes, however the bytes are cut. `most` bounds what is held back, in
 * characters. Throws FrameTooLarge, after the messages before it were given. */
export declare function decoder(most?: number): (chunk: Uint8Array) => Message[];
