/** The hook, in a real React. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { createElement, StrictMode } from "react";
import { act, create, type ReactTestRenderer } from "react-test-renderer";
import { useSession, type Shown } from "../src/react.ts";
import { sessionOf } from "../src/session.ts";
import { clientOf, FINAL, frame, OPENING, shown, TURN, until } from "./play.ts";
import { json, serving, stream } from "./scripted.ts";

Object.assign(globalThis, { IS_REACT_ACT_ENVIRONMENT: true });
const warn = console.error;
console.error = (...words) => String(words[0]).includes("react-test-renderer is deprecated") || warn(...words);

test("a component shows its session, renders once for each change, and leaves it when it goes", async () => {
  await using server = await serving(stream([OPENING, shown(TURN.slice(0, 1)), ...TURN.slice(1).map(frame)], { hang: true }), json({}, 202));
  const client = clientOf(server);
  const renders: Shown[] = [];
  const Page = () => {
    renders.push(useSession(client, "s_1"));
    return createElement("p", null, renders.at(-1)!.status);
  };
  let page!: ReactTestRenderer;
  await act(async () => void (page = create(createElement(StrictMode, null, createElement(Page)))));
  await act(async () => void (await until(sessionOf(client, "s_1"), ({ state }) => state.turns.length === 1)));
  const last = renders.at(-1)!;
  assert.deepEqual([page.toJSON(), last.state], [{ type: "p", props: {}, children: ["completed"] }, FINAL]);
  assert.equal(renders[0]!.send, last.send);
  assert.equal(server.requests.length, 1);
  await act(async () => void (await last.send("more", { turn: "t_2" })));
  assert.deepEqual(server.requests[1]!.body, { turn: "t_2", input: "more" });
  await act(async () => page.unmount());
  client.close();
});
