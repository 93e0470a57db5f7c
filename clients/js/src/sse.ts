/** Server-sent events: bytes in, messages out, by the HTML standard (9.2.5, 9.2.6). */
import { createParser } from "eventsource-parser";

/** One dispatched frame; `id` is what this frame itself carried. */
export interface Message {
  readonly event: string;
  readonly data: string;
  readonly id: string | null;
}

/** A frame, or a line, is larger than a client takes. */
export class FrameTooLarge extends Error {
  readonly code = "frame_too_large";
}

/** Gives the messages that a chunk completes, however the bytes are cut. `most` bounds what is held back, in
 * characters. Throws FrameTooLarge, after the messages before it were given. */
export function decoder(most = 64 * 1024 * 1024): (chunk: Uint8Array) => Message[] {
  let messages: Message[] = [];
  let failed = false;
  let afterCr = false;
  const utf8 = new TextDecoder();
  const parser = createParser({
    maxBufferSize: most,
    onEvent: ({ event = "message", data, id = null }) => messages.push({ event, data, id }),
    onError: ({ type }) => (failed ||= type === "max-buffer-size-exceeded"),
  });
  return (chunk) => {
    if (failed) throw new FrameTooLarge();
    let text = utf8.decode(chunk, { stream: true });
    if (text) {
      if (afterCr && text.startsWith("\n")) text = text.slice(1);
      afterCr = text.endsWith("\r");
      parser.feed(afterCr ? `${text}\n` : text);
    }
    const given = messages;
    messages = [];
    if (failed && !given.length) throw new FrameTooLarge();
    return given;
  };
}
