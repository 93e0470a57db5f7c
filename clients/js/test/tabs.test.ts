/** Several tabs show one session: one of them has a connection, and any of them may go at any time. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { LegatoClient } from "../src/client.ts";
import { sessionOf, type Session } from "../src/session.ts";
import type { Channel, Locks, Sharing } from "../src/tabs.ts";
import { FINAL, frame, frames, log, OPENING, PAYLOADS, shown, stateOf, TURN, until } from "./play.ts";
import { json, serving, stream, type Answer, type Scripted } from "./scripted.ts";
import type { Socket } from "node:net";

const TIMING = { tab: 0.5, stale: 0.05, first: 0.01, silence: 5 };

/** The locks of one browser, with names and theft as the Web Locks API has them. */
class BrowserLocks {
  readonly #queues = new Map<string, Waiting[]>();

  request: Locks["request"] = (name, { signal, steal }, held) =>
    new Promise((resolve, reject) => {
      const queue = this.#queues.get(name) ?? [];
      this.#queues.set(name, queue);
      const waiting: Waiting = { held, resolve, reject, granted: false };
      signal?.addEventListener("abort", () => !waiting.granted && this.#leave(queue, waiting, () => reject(signal.reason)));
      if (steal && queue[0]) queue.shift()!.reject(new DOMException("stolen", "AbortError"));
      if (steal) queue.unshift(waiting);
      else queue.push(waiting);
      this.#grant(queue);
    });

  #grant(queue: Waiting[]): void {
    const [first] = queue;
    if (!first || first.granted) return;
    first.granted = true;
    queueMicrotask(() => first.held().then(() => this.#leave(queue, first, () => first.resolve(undefined))));
  }

  #leave(queue: Waiting[], waiting: Waiting, then: () => void): void {
    if (queue.includes(waiting)) queue.splice(queue.indexOf(waiting), 1);
    then();
    this.#grant(queue);
  }
}

interface Waiting {
  held: () => Promise<void>;
  resolve: (value: unknown) => void;
  reject: (reason: unknown) => void;
  granted: boolean;
}

/** A tab of a browser: it may be hidden, and it may be frozen. */
class Tab {
  seen = true;
  frozen = false;
  missed = 0;
  readonly session: Session;
  readonly #client: LegatoClient;
  readonly #leave: () => void;

  constructor(server: Scripted, locks: BrowserLocks, stale = TIMING.stale) {
    const sharing: Sharing = { locks, channel: (name) => this.#channel(name) };
    const lifecycle = { visible: () => this.seen, listen: () => () => {} };
    this.#client = new LegatoClient(server.url, "dev:ann", { principal: "ann", sharing, lifecycle, timing: { ...TIMING, stale } });
    this.session = sessionOf(this.#client, "s_1");
    this.#leave = this.session.subscribe(() => {});
  }

  close(): void {
    this.#leave();
    this.#client.close();
  }

  #channel(name: string): Channel {
    const real = new BroadcastChannel(name) as unknown as Channel;
    const shown: Channel = {
      onmessage: null,
      postMessage: (data) => !this.frozen && real.postMessage(data),
      close: () => real.close(),
    };
    real.onmessage = (message) => (this.frozen ? this.missed++ : shown.onmessage?.(message));
    return shown;
  }
}

const settled = (tab: Tab) => until(tab.session, ({ state }) => state.turns.length === 1);
const reached = (tab: Tab, cursor: string) => until(tab.session, ({ state }) => state.cursor === cursor);

/** A stream that goes on as its test says; how many events it has given is up to that. */
function led(): { answer: Answer; write: (...events: object[]) => void; end: () => void; closed: Promise<void> } {
  let socket: Socket | undefined;
  let close: () => void;
  const closed = new Promise<void>((resolve) => (close = resolve));
  const answer: Answer = (given) => {
    socket = given;
    socket.on("close", () => close());
    stream([OPENING, shown(TURN.slice(0, 1))], { hang: true })(given);
  };
  return { answer, closed, write: (...events) => events.forEach((event) => socket!.write(frame(event as any))), end: () => socket!.end() };
}

test("tabs of one session share one connection, and all show the same", async () => {
  const stream = led();
  await using server = await serving(stream.answer);
  const locks = new BrowserLocks();
  const tabs = [new Tab(server, locks), new Tab(server, locks), new Tab(server, locks)];
  await Promise.all(tabs.map((tab) => reached(tab, "1-1")));
  stream.write(...TURN.slice(1));
  for (const view of await Promise.all(tabs.map(settled))) assert.deepEqual([view.state, view.status], [FINAL, "completed"]);
  assert.equal(server.requests.length, 1);
  tabs.forEach((tab) => tab.close());
});

test("a tab that comes later shows at once what the others have", async () => {
  const stream = led();
  await using server = await serving(stream.answer);
  const locks = new BrowserLocks();
  const first = new Tab(server, locks);
  await reached(first, "1-1");
  stream.write(...TURN.slice(1, 4));
  await reached(first, "1-4");
  const second = new Tab(server, locks);
  assert.deepEqual((await reached(second, "1-4")).state, stateOf(TURN.slice(0, 4)));
  stream.write(...TURN.slice(4));
  assert.deepEqual((await settled(second)).state, FINAL);
  [first, second].forEach((tab) => tab.close());
});

test("when the tab that leads closes, another goes on from its own cursor", async () => {
  const stream1 = led();
  await using server = await serving(stream1.answer, stream(frames(TURN.slice(4)), { hang: true }));
  const locks = new BrowserLocks();
  const first = new Tab(server, locks);
  await reached(first, "1-1");
  const second = new Tab(server, locks);
  stream1.write(...TURN.slice(1, 4));
  await reached(second, "1-4");
  first.close();
  await stream1.closed;
  assert.deepEqual((await settled(second)).state, FINAL);
  assert.deepEqual(server.cursors, [undefined, "1-4"]);
  second.close();
});

test("a frozen tab loses its lead to one that is seen, and follows that when it thaws", async () => {
  const stream1 = led();
  const stream2 = led();
  const going: Answer = (socket) => (stream2.answer(socket), stream2.write(...TURN.slice(1, 5)));
  await using server = await serving(stream1.answer, going);
  const locks = new BrowserLocks();
  const first = new Tab(server, locks);
  await reached(first, "1-1");
  const second = new Tab(server, locks);
  await reached(second, "1-1");
  first.frozen = true;
  await reached(second, "1-5");
  first.frozen = false;
  stream2.write(...TURN.slice(5));
  for (const tab of [first, second]) assert.deepEqual((await settled(tab)).state, FINAL);
  assert.equal(server.requests.length, 2);
  [first, second].forEach((tab) => tab.close());
});

test("a tab that nobody sees takes no lead from another", async () => {
  const stream1 = led();
  await using server = await serving(stream1.answer);
  const locks = new BrowserLocks();
  const first = new Tab(server, locks);
  await reached(first, "1-1");
  const second = new Tab(server, locks);
  await reached(second, "1-1");
  second.seen = false;
  first.frozen = true;
  await new Promise((awake) => setTimeout(awake, 1200));
  assert.equal(server.requests.length, 1);
  [first, second].forEach((tab) => tab.close());
});

test("a hidden tab whose line is down gives its lead to one that is seen", async () => {
  const stream1 = led();
  const away: Answer = (socket) => json({ code: "draining" }, 503, { "Retry-After": 99 })(socket);
  await using server = await serving(stream1.answer, away, stream(frames(TURN.slice(1)), { hang: true }));
  const locks = new BrowserLocks();
  const first = new Tab(server, locks);
  await reached(first, "1-1");
  const second = new Tab(server, locks);
  await reached(second, "1-1");
  first.seen = false;
  stream1.end();
  assert.deepEqual((await settled(second)).state, FINAL);
  [first, second].forEach((tab) => tab.close());
});

test("a message that a tab has missed is made up for by what the leader has", async () => {
  const stream1 = led();
  await using server = await serving(stream1.answer);
  const locks = new BrowserLocks();
  const first = new Tab(server, locks, 60);
  await reached(first, "1-1");
  const second = new Tab(server, locks, 60);
  await reached(second, "1-1");
  second.frozen = true;
  stream1.write(...TURN.slice(1, 3));
  while (second.missed < 2) await new Promise(setImmediate);
  second.frozen = false;
  stream1.write(...TURN.slice(3));
  assert.deepEqual((await settled(second)).state, FINAL);
  assert.equal(server.requests.length, 1);
  [first, second].forEach((tab) => tab.close());
});

test("text that was lost with its owner is taken back in every tab", async () => {
  const said = [{ type: "turn.resumed", reason: "lease_expired", attempt: 1 }, { type: "turn.completed", text: "w1 W2", usage: {}, finish_reason: "stop" }];
  const other = [...TURN.slice(0, 2), ...log(said, { first: 3, epoch: 2 })];
  const stream1 = led();
  const again = stream([OPENING, shown(other.slice(0, 3)), ...other.slice(3).map(frame)], { hang: true });
  await using server = await serving(stream1.answer, again);
  const locks = new BrowserLocks();
  const tabs = [new Tab(server, locks, 60), new Tab(server, locks, 60)];
  await Promise.all(tabs.map((tab) => reached(tab, "1-1")));
  stream1.write(...TURN.slice(1, 6));
  await Promise.all(tabs.map((tab) => reached(tab, "1-6")));
  stream1.end();
  for (const view of await Promise.all(tabs.map(settled))) assert.deepEqual(view.state, stateOf(other));
  tabs.forEach((tab) => tab.close());
});

test("a turn that any tab sends is followed by the one that leads", async () => {
  const not = json({ code: "not_found" }, 404);
  const later: Answer = stream([OPENING, shown(TURN)], { hang: true });
  await using server = await serving(not, json({}, 202), later);
  const locks = new BrowserLocks();
  const first = new Tab(server, locks);
  await server.asked(1);
  const second = new Tab(server, locks);
  await until(second.session, ({ status }) => status === "streaming");
  await second.session.send("hi", { turn: "t_1" });
  for (const tab of [first, second]) assert.deepEqual((await settled(tab)).state, FINAL);
  assert.deepEqual(server.requests.map(({ method }) => method), ["GET", "POST", "GET"]);
  [first, second].forEach((tab) => tab.close());
});

test("tabs of another principal, or of none, share nothing", async () => {
  const answers = Array(3).fill(stream([OPENING, shown(log(PAYLOADS))], { hang: true }));
  await using server = await serving(...answers);
  const locks = new BrowserLocks();
  const sharing: Sharing = { locks, channel: (name) => new BroadcastChannel(name) as unknown as Channel };
  const clients = ["ann", "bob"].map((principal) => new LegatoClient(server.url, `dev:${principal}`, { principal, sharing }));
  clients.push(new LegatoClient(server.url, "dev:ann"));
  const leaves = clients.map((client) => sessionOf(client, "s_1").subscribe(() => {}));
  await Promise.all(clients.map((client) => until(sessionOf(client, "s_1"), ({ state }) => state.turns.length === 1)));
  assert.equal(server.requests.length, 3);
  leaves.forEach((leave) => leave());
});
