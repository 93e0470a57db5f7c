/** A session as a page shows it: what its status is, what happens when page or network come and go. */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Lifecycle } from "../src/lifecycle.ts";
import { page } from "../src/lifecycle.ts";
import { sessionOf } from "../src/session.ts";
import {
  ASKED, clientOf, Clockwork, closing, FINAL, frame, frames, GOES_ON, Held, log, OPENING, PAYLOADS, seqs, Shelf,
  shown, stateOf, statuses, TURN, until,
} from "./play.ts";
import { dropped, hanging, json, NO_CONTENT, problem, serving, stream } from "./scripted.ts";

const NOT_THERE = problem(404, "not_found");
const EVENTS = TURN.slice(1).map(frame);

/** A page that tests bring back, hide and cut off. */
class Life implements Lifecycle {
  seen = true;
  wake = (): void => {};
  lose = (): void => {};
  hide = (): void => {};
  visible = (): boolean => this.seen;
  listen = (on: { wake: () => void; lose: () => void; hide: () => void }): (() => void) => {
    Object.assign(this, on);
    return () => Object.assign(this, { wake() {}, lose() {}, hide() {} });
  };
}

test("a session that is not there yet begins with its first turn, which is shown before the service has it", async () => {
  await using server = await serving(NOT_THERE, json({}, 202), stream([OPENING, shown(TURN.slice(0, 1)), ...EVENTS], { hang: true }));
  const session = sessionOf(clientOf(server), "s_1");
  const views: any[] = [];
  const leave = session.subscribe(() => views.push(session.view()));
  await server.asked(1);
  assert.equal(await session.send("hi", { turn: "t_1" }), "t_1");
  const view = await until(session, ({ state }) => state.turns.length === 1);
  assert.deepEqual([view.state, view.status, view.sent], [FINAL, "completed", null]);
  assert.ok(views.some(({ sent, state }) => sent?.body.input === "hi" && state.cursor === "0-0"));
  assert.deepEqual(server.requests[1]!.headers["accept"], "application/json");
  leave();
});

test("nothing of an empty session is shown as interrupted", async () => {
  await using server = await serving(NOT_THERE, json({}, 202));
  const session = sessionOf(clientOf(server), "s_1");
  const seen: any[] = [];
  const leave = session.subscribe(() => seen.push(session.view()));
  await server.asked(1);
  await new Promise((awake) => setTimeout(awake, 20));
  assert.deepEqual([statuses(seen).at(-1), session.view().action], ["streaming", undefined]);
  leave();
});

test("a view is the same object until something changes", async () => {
  await using server = await serving(stream([OPENING, shown(TURN)], { hang: true }));
  const session = sessionOf(clientOf(server), "s_1");
  assert.equal(sessionOf(clientOf(server), "s_1") === session, false);
  const view = await until(session, ({ state }) => state.turns.length === 1);
  assert.equal(session.view(), view);
});

test("turns that were there stay the same objects when a snapshot says them again", async () => {
  const second = log(PAYLOADS, { first: 8, turn: "t_2", epoch: 2 });
  const again = stream([OPENING, shown([...TURN, ...second])], { hang: true });
  await using server = await serving(stream([OPENING, shown(TURN), closing("deadline")]), again);
  const session = sessionOf(clientOf(server), "s_1");
  const leave = session.subscribe(() => {});
  const first = (await until(session, ({ state }) => state.turns.length === 1)).state.turns[0];
  const { state } = await until(session, (view) => view.state.turns.length === 2);
  assert.equal(state.turns[0], first);
  leave();
});

test("the status is the line's while that is broken, and the turn's while it stands", async () => {
  const script = [stream([OPENING, shown(TURN.slice(0, 2))]), dropped, stream(frames(TURN.slice(2)), { hang: true })];
  await using server = await serving(...script);
  const session = sessionOf(clientOf(server), "s_1");
  const views: any[] = [];
  const leave = session.subscribe(() => views.push(session.view()));
  await until(session, ({ status }) => status === "completed");
  assert.deepEqual(statuses(views), ["connecting", "streaming", "reconnecting", "streaming", "completed"]);
  leave();
});

test("a session out of reach is interrupted with a way to resume, and resumes", async () => {
  await using server = await serving(stream([OPENING, shown(TURN.slice(0, 2))]), dropped, stream(frames(TURN.slice(2)), { hang: true }));
  const session = sessionOf(clientOf(server, new Clockwork(), { timing: { giveUp: 1 } }), "s_1");
  const leave = session.subscribe(() => {});
  const view = await until(session, ({ status }) => status === "interrupted");
  assert.deepEqual([view.action, view.state], ["resume", stateOf(TURN.slice(0, 2))]);
  session.resume();
  const after = await until(session, ({ status }) => status === "completed");
  assert.deepEqual([after.state, after.action], [FINAL, undefined]);
  leave();
});

test("what is asked in a session is shown and answered", async () => {
  const time = new Held();
  await using server = await serving(stream([OPENING, shown(ASKED), closing("suspended")]), json({}, 202), stream(frames(GOES_ON), { hang: true }));
  const session = sessionOf(clientOf(server, time), "s_1");
  const leave = session.subscribe(() => {});
  await until(session, ({ status }) => status === "waiting");
  await time.looks;
  await session.decide("1-1-1", true);
  await until(session, ({ status }) => status === "completed");
  assert.deepEqual(server.requests[1]!.body, { approved: true });
  leave();
});

test("a session's cancels and credentials are of its active turn", async () => {
  await using server = await serving(stream([OPENING, shown(TURN.slice(0, 2))], { hang: true }), json({}, 202), json({}, 202));
  const session = sessionOf(clientOf(server), "s_1");
  const leave = session.subscribe(() => {});
  await until(session, ({ state }) => state.active);
  await session.cancel("enough");
  await session.supply("mail", "secret");
  assert.deepEqual(server.requests.slice(1).map(({ path }) => path), ["/v1/sessions/s_1/turns/t_1/cancel", "/v1/sessions/s_1/turns/t_1/credentials/mail"]);
  leave();
});

test("a turn that is refused is an error, and is shown no more", async () => {
  await using server = await serving(NOT_THERE, problem(409, "session_busy", { turn: "t_0" }));
  const session = sessionOf(clientOf(server), "s_1");
  const leave = session.subscribe(() => {});
  await server.asked(1);
  await assert.rejects(session.send("hi"), { code: "session_busy", turn: "t_0" });
  assert.equal(session.view().sent, null);
  leave();
});

test("a reload sends the turn again that may not have been heard, under its id", async () => {
  const storage = new Shelf();
  await using server = await serving(NOT_THERE, hanging, NOT_THERE, json({}, 202), stream([OPENING, shown(TURN)], { hang: true }));
  const before = sessionOf(clientOf(server, undefined, { storage }), "s_1");
  const leave = before.subscribe(() => {});
  await server.asked(1);
  before.send("hi", { turn: "t_1" }).catch(() => {});
  await server.asked(2);
  leave();
  const session = sessionOf(clientOf(server, undefined, { storage }), "s_1");
  const left = session.subscribe(() => {});
  await until(session, ({ state }) => state.turns.length === 1);
  const sent = server.requests.filter(({ method }) => method === "POST").map(({ body }) => body);
  assert.deepEqual(sent, Array(2).fill({ turn: "t_1", input: "hi" }));
  left();
});

test("a session is left with its last listener, and none who comes at once costs a connection", async () => {
  await using server = await serving(stream([OPENING, shown(TURN)], { hang: true }), NO_CONTENT);
  const session = sessionOf(clientOf(server), "s_1");
  session.subscribe(() => {})();
  const first = session.subscribe(() => {});
  await until(session, ({ state }) => state.turns.length === 1);
  first();
  const leave = session.subscribe(() => {});
  await new Promise((awake) => setTimeout(awake, 20));
  assert.equal(server.requests.length, 1);
  leave();
  await new Promise((awake) => setTimeout(awake, 20));
  assert.equal(server.requests.length, 1);
});

test("a network that comes back ends the pause", async () => {
  const life = new Life();
  const time = new Held();
  await using server = await serving(problem(503, "draining", { retryAfter: 99 }), stream([OPENING, shown(TURN)], { hang: true }));
  const session = sessionOf(clientOf(server, time, { lifecycle: life }), "s_1");
  const leave = session.subscribe(() => {});
  await time.looks;
  life.wake();
  await until(session, ({ state }) => state.turns.length === 1);
  leave();
});

test("a network that goes is seen at once", async () => {
  const life = new Life();
  const time = new Held();
  const script = [stream([OPENING, shown(TURN.slice(0, 2))], { hang: true }), problem(503, "x", { retryAfter: 99 }), stream(frames(TURN.slice(2)), { hang: true })];
  await using server = await serving(...script);
  const session = sessionOf(clientOf(server, time, { lifecycle: life }), "s_1");
  const leave = session.subscribe(() => {});
  await until(session, ({ state }) => state.active);
  life.lose();
  await until(session, ({ status }) => status === "reconnecting");
  await time.looks;
  life.wake();
  await until(session, ({ status }) => status === "completed");
  leave();
});

test("a page that comes back does not trust a stream that has been silent, and keeps one that has not", async () => {
  const life = new Life();
  const time = new Clockwork();
  await using server = await serving(stream([OPENING, shown(TURN.slice(0, 2))], { hang: true }), stream(frames(TURN.slice(2)), { hang: true }));
  const session = sessionOf(clientOf(server, time, { lifecycle: life }), "s_1");
  const leave = session.subscribe(() => {});
  await until(session, ({ state }) => state.active);
  life.wake();
  time.now += 11;
  assert.equal(server.requests.length, 1);
  life.wake();
  await until(session, ({ status }) => status === "completed");
  assert.deepEqual([time.slept, server.cursors], [[], [undefined, "1-2"]]);
  leave();
});

test("a session that was given up goes on when the page comes back", async () => {
  const life = new Life();
  await using server = await serving(dropped, stream([OPENING, shown(TURN)], { hang: true }));
  const session = sessionOf(clientOf(server, undefined, { lifecycle: life, timing: { giveUp: 0 } }), "s_1");
  const leave = session.subscribe(() => {});
  await until(session, ({ status }) => status === "interrupted");
  life.wake();
  await until(session, ({ state }) => state.turns.length === 1);
  leave();
});

test("a page that is hidden has its state written", async () => {
  const life = new Life();
  const storage = new Shelf();
  await using server = await serving(stream([frames(TURN.slice(0, 5))], { hang: true }));
  const client = clientOf(server, undefined, { lifecycle: life, storage });
  for await (const update of client.turn("s_1", "hi", { turn: "t_1" })) {
    if (seqs([update])[0] !== 5) continue;
    assert.equal(JSON.parse(storage.kept.get("legato::s_1")!).state.cursor, "0-0");
    life.hide();
    assert.equal(JSON.parse(storage.kept.get("legato::s_1")!).state.cursor, "1-5");
    break;
  }
});

test("a browser's page tells of itself by its own events until nobody listens", () => {
  const document = Object.assign(new EventTarget(), { hidden: false, visibilityState: "visible" });
  const window = Object.assign(new EventTarget(), { document });
  const heard: string[] = [];
  const life = page(window as unknown as Window);
  const stop = life.listen({ wake: () => heard.push("wake"), lose: () => heard.push("lose"), hide: () => heard.push("hide") });
  for (const name of ["online", "offline", "pageshow", "pagehide"]) window.dispatchEvent(new Event(name));
  document.dispatchEvent(new Event("visibilitychange"));
  document.hidden = true;
  document.dispatchEvent(new Event("visibilitychange"));
  stop();
  window.dispatchEvent(new Event("online"));
  assert.deepEqual([heard, life.visible()], [["wake", "lose", "wake", "hide", "wake", "hide"], true]);
});
