/** What docs/javascript.md shows runs. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import * as legato from "../src/legato-client.ts";
import { FINAL, stateOf, TURN } from "./play.ts";

const DOCS = readFileSync(new URL("../../../../docs/javascript.md", import.meta.url), "utf8");
const BLOCKS = [...DOCS.matchAll(/```js\n(.*?)```/gs)].map((found) => found[1]!);

test("a plain EventSource shows a session by the reducer", () => {
  const block = BLOCKS.find((code) => code.includes("new EventSource"))!;
  const source = new EventTarget();
  const shown: unknown[] = [];
  const names = /import \{ (.*?) \} from "legato-client";/.exec(block)!;
  const run = new Function("EventSource", "render", "legato", `const { ${names[1]} } = legato;${block.replace(names[0], "")}`);
  run(function () { return source; }, (state: unknown) => shown.push(state), legato);
  const dispatch = (type: string, data: object) => source.dispatchEvent(new MessageEvent(type, { data: JSON.stringify(data) }));
  dispatch("snapshot", stateOf(TURN.slice(0, 2)));
  for (const event of TURN.slice(2)) dispatch(event.type, event);
  assert.deepEqual(shown.at(-1), FINAL);
});

test("every name that the docs import is there", () => {
  const imported = BLOCKS.flatMap((code) => [...code.matchAll(/import \{ (.*?) \} from "legato-client";/g)]);
  for (const name of imported.flatMap((found) => found[1]!.split(", "))) assert.ok(name in legato, name);
  assert.ok(imported.length > 1);
});
