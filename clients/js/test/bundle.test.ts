/** What is shipped: small, and told from its outside. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { gzipSync } from "node:zlib";
import { FINAL, live, WHOLE } from "./play.ts";
import { serving, stream } from "./scripted.ts";

const DIST = new URL("../../dist/", import.meta.url);
const sizeOf = (name: string): number => gzipSync(readFileSync(new URL(name, DIST)), { level: 9 }).length;

test("the bundle is at most 8 KB", () => {
  assert.ok(sizeOf("legato-client.js") <= 8192, `${sizeOf("legato-client.js")} bytes`);
});

test("the session of a page and its hook are at most 3 KB more", () => {
  assert.ok(sizeOf("session.js") + sizeOf("react.js") <= 3072);
});

test("nothing that is shipped asks another host, or for another package than React", () => {
  const imported = ["legato-client.js", "session.js", "react.js"].flatMap((name) => {
    const text = readFileSync(new URL(name, DIST), "utf8");
    assert.doesNotMatch(text, /https?:\/\//);
    return [...text.matchAll(/from"([^"]+)"/g)].map((found) => found[1]);
  });
  assert.deepEqual([...new Set(imported)].sort(), ["./legato-client.js", "./session.js", "react"]);
});

test("the bundle plays a turn", async () => {
  const { LegatoClient } = await import(String(new URL("legato-client.js", DIST)));
  const { sessionOf } = await import(String(new URL("session.js", DIST)));
  await using server = await serving(stream(WHOLE));
  const client = new LegatoClient(server.url, "dev:ann");
  const run = client.turn("s_1", "hi", { turn: "t_1" });
  await live(run);
  assert.deepEqual([run.state, sessionOf(client, "s_1").view().status], [FINAL, "connecting"]);
});
