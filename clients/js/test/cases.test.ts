/** The case files that every client is held to. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { empty, reduce, restore, reuse, SequenceGap, type SessionState } from "../src/reducer.ts";
import { decoder, FrameTooLarge } from "../src/sse.ts";
import { cases } from "./play.ts";

const begin = (found: any): SessionState =>
  found.restore ? restore(found.restore) : (found.before ?? []).reduce(reduce, empty("s_1"));

for (const found of cases("turns")) {
  test(`${found.file}: ${found.name}`, () => {
    let state = begin(found);
    let refused: string | undefined;
    for (const event of found.events) {
      try {
        state = reduce(state, event);
      } catch (gap) {
        if (!(gap instanceof SequenceGap)) throw gap;
        refused = gap.code;
      }
      if (!refused) assert.deepEqual(restore(JSON.parse(JSON.stringify(state))), state);
    }
    assert.deepEqual(state, found.snapshot);
    assert.equal(refused, found.error);
  });
}

test("an empty directory of cases does not pass unseen", () => {
  assert.ok(cases("turns").length > 40);
  assert.ok(cases("sse").length > 50);
});

function read(chunks: Uint8Array[], most?: number): { messages: object[]; error: string | undefined } {
  const decode = decoder(most);
  const messages = [];
  try {
    for (const chunk of [...chunks, new Uint8Array()]) messages.push(...decode(chunk));
  } catch (failure) {
    if (!(failure instanceof FrameTooLarge)) throw failure;
    return { messages, error: failure.code };
  }
  return { messages, error: undefined };
}

for (const { file, name, base64, input, messages } of cases("sse").filter((found) => found.file !== "limits.json")) {
  test(`${file}: ${name}`, () => {
    const data = base64 ? Buffer.from(base64, "base64") : Buffer.from(input);
    assert.deepEqual(read([data]).messages, messages);
    assert.deepEqual(read([...data].map((byte) => Buffer.of(byte))).messages, messages);
    for (let at = 0; at <= data.length; at++) {
      assert.deepEqual(read([data.subarray(0, at), data.subarray(at)]).messages, messages);
    }
  });
}

test("what came before a frame above the limit is given, and the frame is refused before it ends", () => {
  const { messages, error } = read([Buffer.from("data: a\n\nid: 1\ndata: b\n\ndata: 01234567890")], 16);
  assert.deepEqual(messages.map((message: any) => message.data), ["a", "b"]);
  assert.equal(error, "frame_too_large");
});

test("a comment without end is refused at the limit", () => {
  assert.equal(read([Buffer.from(": 0123456789012345")], 16).error, "frame_too_large");
});

test("a frame in many lines is refused at the limit", () => {
  assert.equal(read(Array(5).fill(Buffer.from("data: 0123\n")), 16).error, "frame_too_large");
});

test("a snapshot that says what is known already changes nothing, and one that says more keeps the turns that it repeats", () => {
  const events = cases("turns").find(({ snapshot }) => snapshot.turns.length)!;
  const state = restore(events.snapshot);
  const again = restore(JSON.parse(JSON.stringify(state)));
  assert.equal(reuse(state, again), state);
  assert.equal(reuse(state, { ...again, cursor: "9-90" }).turns[0], state.turns[0]);
});
