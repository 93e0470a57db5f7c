/** The client against a real server on a real socket that breaks off wherever a test says. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { LegatoError } from "../src/wire.ts";
import { decoder } from "../src/sse.ts";
import {
  clientOf, Clockwork, closing, control, FINAL, frame, frames, live, log, looked, OPENING, PAYLOADS, PING, play,
  SEQS, seqs, Shelf, shown, stateOf, statuses, TURN, WAITING, WHOLE,
} from "./play.ts";
import { dropped, hanging, json, NO_CONTENT, problem, serving, signIn, stream, type Answer } from "./scripted.ts";

test("a turn is sent once and told event by event to its end", async () => {
  await using server = await serving(stream(WHOLE));
  const { run, updates } = await play(server);
  assert.deepEqual(updates.flatMap((update) => update.event ?? []), TURN);
  assert.deepEqual([run.state, statuses(updates)], [FINAL, ["connecting", "streaming", "completed"]]);
  const [request] = server.requests;
  assert.deepEqual([request!.method, request!.path, request!.body], ["POST", "/v1/sessions/s_1/turns", { turn: "t_1", input: "hi" }]);
  const { authorization, accept } = request!.headers;
  assert.deepEqual([authorization, request!.headers["idempotency-key"], accept], ["Bearer dev:ann", "t_1", "text/event-stream"]);
});

test("every turn has an id of its own", async () => {
  await using server = await serving();
  const client = clientOf(server);
  assert.notEqual(client.turn("s_1", "hi").turnId, client.turn("s_1", "hi").turnId);
});

test("the options of a turn are sent", async () => {
  await using server = await serving(stream(WHOLE));
  const options = { turn: "t_1", agent: "b", if_active: "interrupt", retry_of: "t_0" } as const;
  await live(clientOf(server).turn("s_1", ["hi"], options));
  assert.deepEqual(server.requests[0]!.body, { input: ["hi"], ...options });
});

for (let after = 1; after < TURN.length; after++) {
  for (const reset of [false, true]) {
    test(`a stream that ends after any event is resumed with its cursor: ${after}${reset ? ", reset" : ""}`, async () => {
      await using server = await serving(stream(frames(TURN.slice(0, after)), { reset }), stream(frames(TURN.slice(after - 1))));
      const { run, updates } = await play(server);
      assert.deepEqual([run.state, seqs(updates)], [FINAL, SEQS]);
      if (reset) return;
      const { cursor, path, query } = server.requests[1]!;
      assert.deepEqual([cursor, path, query], [`1-${after}`, "/v1/sessions/s_1/events", { turn: "t_1" }]);
    });
  }
}

/** Cuts the stream after `at` bytes; what was whole by then is the cursor, and nothing is told twice. */
async function cut(at: number): Promise<void> {
  const whole = decoder()(WHOLE.subarray(0, at)).length;
  await using server = await serving(stream(WHOLE.subarray(0, at)), stream(frames(TURN.slice(whole))));
  const { run, updates } = await play(server);
  assert.deepEqual(server.cursors, [undefined, whole ? `1-${whole}` : undefined], `cut at ${at}`);
  assert.equal(server.requests[1]!.method, whole ? "GET" : "POST");
  assert.deepEqual([run.state, seqs(updates)], [FINAL, SEQS], `cut at ${at}`);
}

const LAST_TWO = WHOLE.length - TURN.slice(-2).map(frame).join("").length;

test("a stream cut at any byte never applies half a frame nor its id", async () => {
  for (let at = 0; at < LAST_TWO; at += at < OPENING.length ? 1371 : 13) await cut(at);
});

test("a stream cut at every byte of its last two frames ends completed", async () => {
  for (let at = LAST_TWO; at < WHOLE.length; at++) await cut(at);
});

test("a stream is read however its bytes come", async () => {
  const trickling: Answer = async (socket) => {
    stream([], { hang: true })(socket);
    for (const byte of WHOLE.subarray(OPENING.length)) {
      socket.write(Buffer.of(byte));
      await new Promise(setImmediate);
    }
  };
  await using server = await serving(trickling);
  const { updates } = await play(server);
  assert.deepEqual([seqs(updates), server.requests.length], [SEQS, 1]);
});

test("three drops in a row resume with rising cursors", async () => {
  const parts = [TURN.slice(0, 2), TURN.slice(2, 3), TURN.slice(3, 5), TURN.slice(5)];
  await using server = await serving(...parts.map((part) => stream(frames(part))));
  const { run, updates } = await play(server);
  assert.deepEqual(server.cursors, [undefined, "1-2", "1-3", "1-5"]);
  assert.deepEqual([run.state, seqs(updates)], [FINAL, SEQS]);
});

test("a cut after a ping or a control frame loses nothing", async () => {
  const note = control("auth.expiring", { expires_at: 1 });
  const script = [frames(TURN.slice(0, 2)) + PING, frames(TURN.slice(2, 4)) + note + PING, frames(TURN.slice(4))];
  await using server = await serving(...script.map((part) => stream(part)));
  const { run } = await play(server);
  assert.deepEqual([server.cursors, run.state], [[undefined, "1-2", "1-4"], FINAL]);
});

test("a control frame of a later version breaks nothing", async () => {
  await using server = await serving(stream([frames(TURN.slice(0, 2)), control("later.note", { x: 1 }), frames(TURN.slice(2))]));
  const { run } = await play(server);
  assert.deepEqual([run.state, server.requests.length], [FINAL, 1]);
});

test("a drop is shown as reconnecting and never as completed", async () => {
  await using server = await serving(stream(frames(TURN.slice(0, 3))), dropped, stream(frames(TURN.slice(3))));
  const { updates } = await play(server);
  assert.deepEqual(statuses(updates), ["connecting", "streaming", "reconnecting", "streaming", "completed"]);
  const done = updates.filter(({ status }) => status === "completed").map((update) => update.event?.type);
  assert.deepEqual(done, ["turn.completed"]);
});

for (const lost of [dropped, stream(), stream(OPENING), stream(OPENING, { reset: true })]) {
  test("a POST whose answer never came is repeated under the same id", async () => {
    await using server = await serving(lost, lost, stream(WHOLE));
    const { run, updates } = await play(server);
    assert.deepEqual(server.requests.map(({ method, body }) => [method, body.turn]), Array(3).fill(["POST", "t_1"]));
    assert.deepEqual([run.state, seqs(updates)], [FINAL, SEQS]);
  });
}

test("pauses grow while nothing answers and start again with an event", async () => {
  const time = new Clockwork();
  const script = [dropped, dropped, dropped, stream(frames(TURN.slice(0, 2))), dropped, stream(frames(TURN.slice(2)))];
  await using server = await serving(...script);
  await play(server, time);
  assert.deepEqual(time.slept, [1, 2, 4, 1, 2]);
});

for (const reason of ["draining", "deadline", "auth"]) {
  test(`an orderly close is followed at once: ${reason}`, async () => {
    const time = new Clockwork();
    const asked: boolean[] = [];
    const token = (fresh: boolean) => `dev:${asked.push(fresh)}`;
    const first = stream([frames(TURN.slice(0, 2)), closing(reason)], { hang: true });
    await using server = await serving(first, stream(frames(TURN.slice(2))));
    const { run } = await play(server, time, { token });
    assert.deepEqual([run.state, time.slept, server.cursors], [FINAL, [], [undefined, "1-2"]]);
    assert.deepEqual(asked, [false, reason === "auth"]);
    assert.equal(server.requests[1]!.headers["authorization"], "Bearer dev:2");
  });
}

for (const reason of ["slow", "lease"]) {
  test(`a close that is not orderly is followed after a pause: ${reason}`, async () => {
    const time = new Clockwork();
    await using server = await serving(stream([frames(TURN.slice(0, 2)), closing(reason)]), stream(frames(TURN.slice(2))));
    const { run } = await play(server, time);
    assert.deepEqual([run.state, time.slept], [FINAL, [1]]);
  });
}

test("the pause that a close asks for is kept", async () => {
  const time = new Clockwork();
  await using server = await serving(stream([frames(TURN.slice(0, 2)), closing("draining", { retry_ms: 1500 })]), stream(frames(TURN.slice(2))));
  await play(server, time);
  assert.deepEqual(time.slept, [1.5]);
});

for (const status of [429, 503]) {
  test(`Retry-After is honoured: ${status}`, async () => {
    const time = new Clockwork();
    await using server = await serving(problem(status, "draining", { retryAfter: 7 }), stream(WHOLE));
    const { run } = await play(server, time);
    assert.deepEqual([run.state, time.slept], [FINAL, [7]]);
  });
}

test("a stream without a byte is broken and its turn is resumed", async () => {
  await using server = await serving(stream(frames(TURN.slice(0, 2)), { hang: true }), stream(frames(TURN.slice(2))));
  const { run } = await play(server, undefined, { timing: { silence: 0.2 } });
  assert.deepEqual([run.state, server.cursors], [FINAL, [undefined, "1-2"]]);
});

test("a stream that pings is not broken", async () => {
  const pinging: Answer = async (socket) => {
    stream(frames(TURN.slice(0, 2)), { hang: true })(socket);
    for (let beat = 0; beat < 8; beat++) {
      await new Promise((awake) => setTimeout(awake, 100));
      socket.write(PING);
    }
    socket.end(frames(TURN.slice(2)));
  };
  await using server = await serving(pinging);
  const { run } = await play(server, undefined, { timing: { silence: 0.5 } });
  assert.deepEqual([run.state, server.requests.length], [FINAL, 1]);
});

test("a hop that holds streams back is passed by the long poll", async () => {
  const polled = [
    json({ turn: "t_1", status: "streaming" }, 202),
    json({ events: TURN.slice(0, 3), cursor: "1-3", more: true }),
    json({ events: TURN.slice(3), cursor: "1-7", more: false }),
  ];
  await using server = await serving(stream([], { hang: true }), hanging, ...polled);
  const { run, updates } = await play(server, undefined, { timing: { silence: 0.2 } });
  assert.deepEqual([run.state, seqs(updates)], [FINAL, SEQS]);
  assert.deepEqual(server.requests.slice(2).map(({ headers }) => headers["accept"]), Array(3).fill("application/json"));
  assert.deepEqual(server.requests.map(({ query }) => query["wait"]), [undefined, undefined, undefined, "20", "20"]);
  assert.deepEqual(server.cursors.slice(3), [undefined, "1-3"]);
});

test("a fetch whose answers cannot be read bit by bit is served by the long poll at once", async () => {
  const time = new Clockwork();
  await using server = await serving(json({}, 202), json({ events: TURN, cursor: "1-7", more: false }));
  const { run } = await play(server, time, { streams: false });
  assert.deepEqual([run.state, time.slept, server.requests[1]!.query["wait"]], [FINAL, [], "20"]);
});

test("a long poll that ended with nothing is followed by the next one at once", async () => {
  const time = new Clockwork();
  const empty: Answer = (socket) => {
    time.now += 20;
    json({ events: [], cursor: "0-0", more: true })(socket);
  };
  await using server = await serving(json({}, 202), empty, empty, json({ events: TURN, cursor: "1-7", more: false }));
  const { run, updates } = await play(server, time, { streams: false });
  assert.deepEqual([run.state, time.slept, statuses(updates)], [FINAL, [], ["connecting", "streaming", "completed"]]);
});

test("a long poll may bring a snapshot and events after it", async () => {
  const answer = { events: TURN.slice(-1), snapshot: stateOf(TURN.slice(0, 6)), cursor: "1-7" };
  await using server = await serving(hanging, hanging, json({}, 202), json(answer));
  const { run } = await play(server, undefined, { timing: { silence: 0.2 } });
  assert.deepEqual(run.state, FINAL);
});

test("a waiting turn is looked at every thirty seconds until it goes on", async () => {
  const time = new Clockwork();
  const resumed = log([{ type: "turn.resumed", reason: "decision", attempt: 1 }], { first: 6, epoch: 2 });
  const ended = log([{ type: "turn.completed", text: "done" }], { first: 7, epoch: 2 });
  const first = stream([frames(WAITING), closing("suspended")]);
  const still = looked(WAITING);
  await using server = await serving(first, still, still, looked([...WAITING, ...resumed]), stream(frames(ended)));
  const { run, updates } = await play(server, time);
  assert.deepEqual(time.slept, [30, 30, 30]);
  assert.deepEqual(server.requests.map(({ path }) => path.split("/").at(-1)), ["turns", "s_1", "s_1", "s_1", "events"]);
  assert.deepEqual(statuses(updates), ["connecting", "streaming", "waiting", "streaming", "completed"]);
  assert.equal(run.turn!.output, "done");
});

test("a waiting turn that ended meanwhile stops the client", async () => {
  const end = [{ type: "turn.resumed", reason: "cancel", attempt: 0 }, { type: "turn.interrupted", reason: "cancelled", by: "ann" }];
  const ended = [...WAITING, ...log(end, { first: 6, epoch: 2 })];
  await using server = await serving(stream([frames(WAITING), closing("suspended")]), looked(ended));
  const { run } = await play(server);
  assert.deepEqual([run.status, run.action, run.state], ["interrupted", undefined, stateOf(ended)]);
});

test("a finished turn costs no further request, and not even the end of its stream", async () => {
  await using server = await serving(stream(WHOLE, { hang: true }));
  await play(server, undefined, { timing: { silence: 60 } });
  assert.equal(server.requests.length, 1);
});

test("a turn whose end is at the cursor is known after one look", async () => {
  await using server = await serving(stream(frames(TURN.slice(0, 3))), NO_CONTENT, looked(TURN));
  const { run, updates } = await play(server);
  assert.deepEqual([run.state, statuses(updates).at(-1), server.requests.length], [FINAL, "completed", 3]);
});

test("a turn that is gone keeps its draft and is interrupted with a way to retry", async () => {
  await using server = await serving(stream(frames(TURN.slice(0, 3))), problem(410, "turn_gone"));
  const { run, updates } = await play(server);
  assert.deepEqual([run.status, run.action, server.requests.length], ["interrupted", "retry", 2]);
  assert.deepEqual(updates.at(-1)!.state, stateOf(TURN.slice(0, 3)));
});

test("a turn out of reach for five minutes is interrupted with a way to resume", async () => {
  const time = new Clockwork();
  await using server = await serving(stream(frames(TURN.slice(0, 3))), ...Array(20).fill(dropped));
  const client = clientOf(server, time);
  const run = client.turn("s_1", "hi", { turn: "t_1" });
  const updates = await live(run);
  assert.deepEqual(statuses(updates), ["connecting", "streaming", "reconnecting", "interrupted"]);
  assert.deepEqual([run.action, await client.unfinished("s_1")], ["resume", "t_1"]);
  assert.ok(time.now >= 300 && time.now < 331);
});

test("a turn left for later is resumed from its cursor", async () => {
  await using server = await serving(stream(frames(TURN.slice(0, 3))), dropped, stream(frames(TURN.slice(3))));
  const client = clientOf(server, undefined, { timing: { giveUp: 1 } });
  await live(client.turn("s_1", "hi", { turn: "t_1" }));
  const run = client.resume("s_1");
  await live(run);
  assert.deepEqual([run.state, server.cursors], [FINAL, [undefined, "1-3", "1-3"]]);
});

test("a turn that never reached its server is left to be sent again", async () => {
  await using server = await serving(dropped, dropped, stream(WHOLE));
  const client = clientOf(server, undefined, { timing: { giveUp: 1 } });
  await live(client.turn("s_1", "hi", { turn: "t_1" }));
  assert.equal(await client.unfinished("s_1"), "t_1");
  const run = client.resume("s_1");
  await live(run);
  assert.deepEqual(server.requests.map(({ method }) => method), Array(3).fill("POST"));
  assert.deepEqual(run.state, FINAL);
});

test("nothing to resume is an error", async () => {
  await using server = await serving();
  await assert.rejects(live(clientOf(server).resume("s_1")), { code: "not_found" });
});

test("leaving a run closes its connection", async () => {
  let left: () => void;
  const closed = new Promise<void>((resolve) => (left = resolve));
  await using server = await serving((socket) => {
    socket.on("close", () => left());
    stream(frames(TURN.slice(0, 3)), { hang: true })(socket);
  });
  const run = clientOf(server).turn("s_1", "hi", { turn: "t_1" });
  for await (const { event } of run) if (event) break;
  await closed;
});

test("a run that is closed in mid-stream ends without another request", async () => {
  await using server = await serving(stream(frames(TURN.slice(0, 3)), { hang: true }));
  const run = clientOf(server).turn("s_1", "hi", { turn: "t_1" });
  for await (const { event } of run) if (event?.seq === 3) setTimeout(() => run.close(), 10);
  assert.deepEqual([run.state, server.requests.length], [stateOf(TURN.slice(0, 3)), 1]);
});

test("a refused token is refreshed once", async () => {
  const asked: boolean[] = [];
  const token = async (fresh: boolean) => (asked.push(fresh), "dev:ann");
  {
    await using server = await serving(problem(401, "unauthorized"), stream(WHOLE));
    const { run } = await play(server, undefined, { token });
    assert.deepEqual([run.state, asked], [FINAL, [false, true]]);
  }
  await using server = await serving(...Array(3).fill(problem(401, "unauthorized")));
  const { run } = await play(server, undefined, { token });
  assert.deepEqual([run.status, run.action, server.requests.length], ["interrupted", "resume", 2]);
  assert.equal(run.refusal!.code, "unauthorized");
});

test("a token that cannot be had while the network is away is asked for again", async () => {
  const time = new Clockwork();
  let asked = 0;
  const token = async () => {
    if (asked++ < 2) throw new Error("auth/network-request-failed");
    return "dev:ann";
  };
  await using server = await serving(stream(WHOLE));
  const { run } = await play(server, time, { token });
  assert.deepEqual([run.state, time.slept], [FINAL, [1, 2]]);
});

test("a token that is about to end is replaced beside the stream, which goes on", async () => {
  let renewed: () => void;
  const brought = new Promise<void>((resolve) => (renewed = resolve));
  const expiring: Answer = async (socket) => {
    const told = control("auth.expiring", { expires_at: 1 });
    stream([frames(TURN.slice(0, 2)), told, told], { hang: true, headers: { "Legato-Stream": "st_9" } })(socket);
    await brought;
    socket.end(frames(TURN.slice(2)));
  };
  await using server = await serving(expiring, (socket) => (NO_CONTENT(socket), renewed()));
  const { run } = await play(server, undefined, { token: (fresh) => (fresh ? "dev:fresh" : "dev:ann") });
  const [, auth] = server.requests;
  assert.deepEqual([run.state, server.requests.length], [FINAL, 2]);
  assert.deepEqual([auth!.method, auth!.path, auth!.body], ["POST", "/v1/sessions/s_1/auth", { stream: "st_9" }]);
  assert.equal(auth!.headers["authorization"], "Bearer dev:fresh");
});

test("a stream whose token cannot be replaced is closed and resumed with a fresh one", async () => {
  const told = control("auth.expiring", { expires_at: 1 });
  const first: Answer = async (socket) => {
    stream([frames(TURN.slice(0, 2)), told], { hang: true })(socket);
    await server.asked(2);
    socket.write(closing("auth"));
  };
  await using server = await serving(first, problem(404, "unknown_path"), stream(frames(TURN.slice(2))));
  const { run } = await play(server, undefined, { token: (fresh) => (fresh ? "dev:fresh" : "dev:ann") });
  assert.deepEqual([run.state, server.requests[2]!.headers["authorization"]], [FINAL, "Bearer dev:fresh"]);
});

for (const [status, code, more] of [
  [409, "session_busy", { turn: "t_0" }], [409, "turn_conflict", {}], [413, "input_too_large", {}],
  [422, "invalid", { path: "input" }], [403, "forbidden", {}],
] as const) {
  test(`a turn refused for good is an error and not sent again: ${code}`, async () => {
    await using server = await serving(problem(status, code, more));
    const client = clientOf(server);
    const refused = { name: "LegatoError", code, status, message: `because of ${code}`, ...more };
    await assert.rejects(live(client.turn("s_1", "hi", { turn: "t_1" })), refused);
    assert.deepEqual([await client.unfinished("s_1"), server.requests.length], [undefined, 1]);
  });
}

test("a gap is resumed at once from the cursor before it", async () => {
  const time = new Clockwork();
  await using server = await serving(stream(frames([...TURN.slice(0, 2), ...TURN.slice(3)])), stream(frames(TURN.slice(2))));
  const { run, updates } = await play(server, time);
  assert.deepEqual([server.cursors, time.slept], [[undefined, "1-2"], []]);
  assert.deepEqual([run.state, seqs(updates)], [FINAL, SEQS]);
});

test("a gap that comes back is a broken line", async () => {
  const time = new Clockwork();
  const gap = stream(frames(TURN.slice(3)));
  await using server = await serving(gap, gap, stream(WHOLE));
  const { run, updates } = await play(server, time);
  assert.deepEqual([run.state, time.slept], [FINAL, [2]]);
  assert.deepEqual(statuses(updates), ["connecting", "streaming", "reconnecting", "streaming", "completed"]);
});

test("a turn in a session seen for the first time starts with its snapshot on an unbroken line", async () => {
  const time = new Clockwork();
  const turn = log(PAYLOADS, { first: 8, turn: "t_2", epoch: 2 });
  const seen = shown([...TURN, ...turn.slice(0, 3)]);
  await using server = await serving(stream(frames(turn)), stream([OPENING, seen, ...turn.slice(3).map(frame)]));
  const run = clientOf(server, time).turn("s_1", "hi", { turn: "t_2" });
  const updates = await live(run);
  assert.deepEqual(server.requests.map(({ method, cursor }) => [method, cursor]), [["POST", undefined], ["GET", undefined]]);
  assert.deepEqual([run.state, statuses(updates), time.slept], [stateOf([...TURN, ...turn]), ["connecting", "streaming", "completed"], []]);
});

test("a snapshot replaces what was seen even when it sets the cursor back", async () => {
  const said = [{ type: "turn.resumed", reason: "released", attempt: 0 }, { type: "text.delta", step: 1, text: "W2" }, { type: "turn.completed", text: "w1 W2" }];
  const other = [...TURN.slice(0, 2), ...log(said, { first: 3, epoch: 2 })];
  const again = stream([OPENING, shown(other.slice(0, 2)), ...other.slice(2).map(frame)]);
  await using server = await serving(stream(frames(TURN.slice(0, 4))), again);
  const { run, updates } = await play(server);
  assert.deepEqual([run.state, seqs(updates)], [stateOf(other), [1, 2, 3, 4, 3, 4, 5]]);
});

test("events at or below the cursor are not told again", async () => {
  await using server = await serving(stream(frames(TURN.slice(0, 4))), stream(WHOLE));
  const { run, updates } = await play(server);
  assert.deepEqual([run.state, seqs(updates)], [FINAL, SEQS]);
});

for (const broken of ["id: 1-3\nevent: text.delta\ndata: {}\n\n", "id: 1-3\ndata: [DONE]\n\n", "id: 1-3\nevent: snapshot\ndata: {\n\n"]) {
  test(`a frame that makes no sense breaks the stream and nothing else: ${JSON.stringify(broken)}`, async () => {
    await using server = await serving(stream([frames(TURN.slice(0, 2)), broken]), stream(frames(TURN.slice(2))));
    const { run } = await play(server);
    assert.deepEqual([run.state, server.cursors], [FINAL, [undefined, "1-2"]]);
  });
}

test("a frame beyond the limit breaks the stream and nothing else", async () => {
  const large = stream([frames(TURN.slice(0, 2)), "data: ", "x".repeat(400_000)], { hang: true });
  await using server = await serving(large, stream(frames(TURN.slice(2))));
  const { run } = await play(server, undefined, { maxBytes: 10_000 });
  assert.deepEqual([run.state, server.cursors], [FINAL, [undefined, "1-2"]]);
});

for (const answer of [json([]), json("x"), json({}), json({}, 302, { Location: "/sign-in" }), json({}, 502)]) {
  test("an answer that is not the service's breaks nothing", async () => {
    await using server = await serving(signIn, answer, stream(WHOLE));
    const { run } = await play(server);
    assert.deepEqual(run.state, FINAL);
    assert.ok(server.requests.every(({ path }) => path.startsWith("/v1/sessions/s_1")));
  });
}

test("a followed session lives on through its turns", async () => {
  const second = log(PAYLOADS, { first: 8, turn: "t_2", epoch: 2 });
  const first = stream([OPENING, shown(TURN.slice(0, 2)), ...TURN.slice(2).map(frame)]);
  await using server = await serving(first, stream(frames(second), { hang: true }));
  const run = clientOf(server).follow("s_1");
  for await (const { state } of run) if (state.turns.length === 2) break;
  assert.deepEqual(run.state, stateOf([...TURN, ...second]));
  assert.deepEqual(server.requests.map(({ query, cursor }) => [query, cursor]), [[{}, undefined], [{}, "1-7"]]);
});

test("following a session that is not there is an error", async () => {
  await using server = await serving(problem(404, "not_found"));
  await assert.rejects(live(clientOf(server).follow("s_1")), (error) => error instanceof LegatoError && error.code === "not_found");
});

test("a turn is kept before it is sent, and its state as it comes", async () => {
  const storage = new Shelf();
  const kept = () => JSON.parse([...storage.kept.values()][0]!);
  let before;
  await using server = await serving((socket) => {
    before = kept();
    stream(frames(TURN.slice(0, 3)), { reset: true })(socket);
  }, dropped);
  const client = clientOf(server, undefined, { storage, timing: { giveUp: 1 } });
  await live(client.turn("s_1", "hi", { turn: "t_1" }));
  assert.deepEqual(before, { state: stateOf([]), sent: { turn: "t_1", body: { turn: "t_1", input: "hi" } } });
  assert.equal(kept().sent.turn, "t_1");
});

test("a reload in mid-turn resumes it from what was kept, and sends nothing again", async () => {
  const storage = new Shelf();
  await using server = await serving(stream(frames(TURN.slice(0, 3)), { hang: true }), stream(frames(TURN.slice(3))));
  for await (const { event } of clientOf(server, undefined, { storage }).turn("s_1", "hi", { turn: "t_1" })) {
    if (event?.seq === 3) break;
  }
  const run = clientOf(server, undefined, { storage }).resume("s_1");
  await live(run);
  assert.deepEqual([run.state, server.cursors], [FINAL, [undefined, "1-3"]]);
  assert.equal(JSON.parse(storage.kept.get("legato::s_1")!).sent, null);
});

test("a turn in mid-stream is written once a second", async () => {
  const storage = new Shelf();
  await using server = await serving(stream(WHOLE));
  await play(server, undefined, { storage });
  assert.equal(storage.writes, 2);
});

test("a storage that is full or forbidden costs nothing but the reload", async () => {
  const full = () => { throw new Error("QuotaExceededError"); };
  await using server = await serving(stream(WHOLE));
  const { run } = await play(server, undefined, { storage: { getItem: full, setItem: full, removeItem: full } });
  assert.deepEqual(run.state, FINAL);
});
