/** The client's small requests, and a turn that waits for a person: what is shown, and when it is asked for again. */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { LegatoClient } from "../src/client.ts";
import type { Update } from "../src/run.ts";
import { sessionOf } from "../src/session.ts";
import {
  ASKED, clientOf, Clockwork, closing, control, FINAL, frame, frames, GOES_ON, Held, live, log, looked, OPENING,
  PAYLOADS, seqs, shown, stateOf, statuses, TURN,
} from "./play.ts";
import { dropped, json, NO_CONTENT, problem, serving, stream, type Scripted } from "./scripted.ts";

const SUSPENDED = stream([frames(ASKED), closing("suspended")]);
const STILL = stream([OPENING, closing("suspended")]);
const DECIDED = "/v1/sessions/s_1/turns/t_1/approvals/1-1-1";
const last = (server: Scripted) => server.requests.map(({ path }) => path.split("/").at(-1));

test("the small requests say what the contract says", async () => {
  await using server = await serving(looked(TURN), looked(TURN), json({}, 202), NO_CONTENT);
  const client = clientOf(server);
  assert.deepEqual(await client.snapshot("s_1"), FINAL);
  await client.snapshot("s_1", 40);
  await client.cancel("s_1", "t_1", "enough");
  await client.delete("s_1");
  assert.deepEqual(server.requests.map(({ method, path }) => [method, path]), [
    ["GET", "/v1/sessions/s_1"], ["GET", "/v1/sessions/s_1"], ["POST", "/v1/sessions/s_1/turns/t_1/cancel"], ["DELETE", "/v1/sessions/s_1"],
  ]);
  assert.deepEqual([server.requests[1]!.query, server.requests[2]!.body], [{ before: "40" }, { reason: "enough" }]);
});

test("sessions are listed page after page", async () => {
  const pages = [{ sessions: [{ session: "b" }], before: "7-b" }, { sessions: [{ session: "a" }], before: null }];
  await using server = await serving(...pages.map((page) => json(page)));
  const client = clientOf(server);
  const first = await client.sessions();
  const names = [...first.sessions, ...(await client.sessions(first.before!)).sessions].map(({ session }) => session);
  assert.deepEqual([names, server.requests.map(({ query }) => query)], [["b", "a"], [{}, { before: "7-b" }]]);
});

for (const ask of [(client: LegatoClient) => client.snapshot("s_1"), (client: LegatoClient) => client.cancel("s_1", "t_1")]) {
  test("a small request refreshes its token once and rejects with what it is refused for", async () => {
    await using server = await serving(problem(401, "unauthorized"), problem(404, "not_found"));
    await assert.rejects(ask(clientOf(server)) as Promise<unknown>, { code: "not_found", message: "because of not_found" });
    assert.equal(server.requests.length, 2);
  });
}

test("decisions and credentials are sent with what there is to say", async () => {
  await using server = await serving(...Array(4).fill(json({}, 202)));
  const client = clientOf(server);
  await client.decide("s_1", "t_1", "1-1-1", true);
  await client.decide("s_1", "t_1", "1-1-1", false, "too much");
  await client.supply("s_1", "t_1", "mail", "secret");
  await client.supply("s_1", "t_1", "mail", "secret", 60);
  const credential = "/v1/sessions/s_1/turns/t_1/credentials/mail";
  assert.deepEqual(server.requests.map(({ method, path, body }) => [method, path, body]), [
    ["POST", DECIDED, { approved: true }], ["POST", DECIDED, { approved: false, note: "too much" }],
    ["POST", credential, { value: "secret" }], ["POST", credential, { value: "secret", expires_in: 60 }],
  ]);
});

test("what is asked is repeated while the network or a passing refusal is in the way", async () => {
  const time = new Clockwork();
  const script = [dropped, problem(503, "draining", { retryAfter: 7 }), problem(502, "http"), json({}, 202)];
  await using server = await serving(...script, ...script, ...script);
  const client = clientOf(server, time);
  await client.decide("s_1", "t_1", "1-1-1", true);
  assert.deepEqual(time.slept, [1, 7, 4]);
  await client.cancel("s_1", "t_1");
  await client.supply("s_1", "t_1", "mail", "secret");
  assert.deepEqual(last(server), [...Array(4).fill("1-1-1"), ...Array(4).fill("cancel"), ...Array(4).fill("mail")]);
});

for (const [status, code] of [[409, "already_decided"], [404, "not_found"], [410, "turn_gone"], [403, "forbidden"]] as const) {
  test(`a decision refused for good is an error and not sent again: ${code}`, async () => {
    await using server = await serving(problem(status, code));
    await assert.rejects(clientOf(server).decide("s_1", "t_1", "1-1-1", true), { code, status });
    assert.equal(server.requests.length, 1);
  });
}

for (const lost of [dropped, problem(503, "draining")]) {
  test("a decision that cannot be sent for five minutes is an error", async () => {
    const time = new Clockwork();
    await using server = await serving(...Array(20).fill(lost));
    await assert.rejects(clientOf(server, time).decide("s_1", "t_1", "1-1-1", true));
    assert.ok(time.now >= 300 && time.now < 331);
  });
}

for (const name of ["", "a/b", "../x", "a b", "é", "x".repeat(65), "a\n"]) {
  test(`an id that can be none is refused before anything is sent: ${JSON.stringify(name)}`, async () => {
    await using server = await serving();
    const client = clientOf(server);
    const invalid = { code: "invalid", message: /is no id/ };
    assert.throws(() => client.turn(name, "hi"), invalid);
    assert.throws(() => client.turn("s_1", "hi", { turn: name || "/" }), invalid);
    assert.throws(() => client.follow(name), invalid);
    assert.throws(() => sessionOf(client, name), invalid);
    await assert.rejects(async () => client.decide("s_1", "t_1", name, true), invalid);
    assert.deepEqual(server.requests, []);
  });
}

test("a suspended turn is shown with its open questions", async () => {
  await using server = await serving(SUSPENDED, looked([...ASKED, ...GOES_ON]));
  const run = clientOf(server).turn("s_1", "hi", { turn: "t_1" });
  const waiting = (await live(run)).find(({ status }) => status === "waiting")!;
  assert.deepEqual(waiting.state.active!.approvals.map(({ request, prompt }) => [request, prompt]), [["1-1-1", "Wire 5?"]]);
  assert.deepEqual([run.status, run.state], ["completed", stateOf([...ASKED, ...GOES_ON])]);
});

/** A client whose turn waits, with its look far away. */
async function waiting(server: Scripted): Promise<{ client: LegatoClient; time: Held; living: Promise<Update[]> }> {
  const time = new Held();
  const client = clientOf(server, time);
  const living = live(client.turn("s_1", "hi", { turn: "t_1" }));
  await time.looks;
  return { client, time, living };
}

test("a decision made here resumes the stream at once", async () => {
  await using server = await serving(SUSPENDED, json({}, 202), stream(frames(GOES_ON)));
  const { client, time, living } = await waiting(server);
  await client.decide("s_1", "t_1", "1-1-1", true);
  const updates = await living;
  assert.deepEqual(server.requests.slice(1).map(({ method, cursor }) => [method, cursor]), [["POST", undefined], ["GET", "1-6"]]);
  assert.deepEqual([seqs(updates), time.slept], [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [30]]);
  assert.deepEqual(statuses(updates), ["connecting", "streaming", "waiting", "streaming", "completed"]);
});

test("a decision that another made first resumes the stream at once too", async () => {
  await using server = await serving(SUSPENDED, problem(409, "already_decided"), stream(frames(GOES_ON)));
  const { client, living } = await waiting(server);
  await assert.rejects(client.decide("s_1", "t_1", "1-1-1", false), { code: "already_decided" });
  assert.equal(statuses(await living).at(-1), "completed");
});

test("a cancel made here is seen at once", async () => {
  const end = [{ type: "turn.resumed", reason: "cancel", attempt: 0 }, { type: "turn.interrupted", reason: "cancelled", by: "ann" }];
  await using server = await serving(SUSPENDED, json({}, 202), stream(frames(log(end, { first: 7, epoch: 2 }))));
  const { client, living } = await waiting(server);
  await client.cancel("s_1", "t_1");
  assert.equal(statuses(await living).at(-1), "interrupted");
});

test("a turn that has not gone on yet after a decision is reached for a few times", async () => {
  await using server = await serving(SUSPENDED, json({}, 202), STILL, STILL, stream(frames(GOES_ON)));
  const { client, time, living } = await waiting(server);
  await client.decide("s_1", "t_1", "1-1-1", true);
  await living;
  assert.deepEqual(time.slept, [30, 1, 2]);
});

test("a decision in another turn or session resumes nothing", async () => {
  await using server = await serving(SUSPENDED, json({}, 202), json({}, 202));
  const { client, time } = await waiting(server);
  await client.decide("s_1", "t_2", "1-1-1", true);
  await client.decide("s_2", "t_1", "1-1-1", true);
  await new Promise((awake) => setTimeout(awake, 20));
  assert.deepEqual([server.requests.length, time.slept], [3, [30]]);
  client.close();
});

test("a look that finds the turn streaming resumes its stream", async () => {
  const resumed = log([{ type: "turn.resumed", reason: "expiry", attempt: 0 }], { first: 7, epoch: 2 });
  await using server = await serving(SUSPENDED, looked([...ASKED, ...resumed]), stream(frames(GOES_ON.slice(1))));
  const run = clientOf(server).turn("s_1", "hi", { turn: "t_1" });
  await live(run);
  assert.deepEqual([run.status, server.cursors], ["completed", [undefined, undefined, "2-7"]]);
});

test("a snapshot with a waiting turn is a waiting turn", async () => {
  const time = new Clockwork();
  await using server = await serving(stream([OPENING, shown(ASKED), closing("suspended")]), looked([...ASKED, ...GOES_ON]));
  const updates = await live(clientOf(server, time).resume("s_1", "t_1"));
  assert.deepEqual([statuses(updates), time.slept], [["connecting", "streaming", "waiting", "completed"], [30]]);
});

for (const gone of [problem(410, "turn_gone"), json({ ...stateOf(ASKED), active: null, cursor: "9-90" })]) {
  test("what was seen of a turn that is gone stays", async () => {
    await using server = await serving(SUSPENDED, gone, problem(410, "turn_gone"));
    const run = clientOf(server).turn("s_1", "hi", { turn: "t_1" });
    await live(run);
    assert.deepEqual([run.status, run.action, run.turn!.input, run.turn!.draft], ["interrupted", "retry", "hi", stateOf(ASKED).active!.draft]);
  });
}

const TAKEN = [
  { type: "turn.resumed", reason: "lease_expired", attempt: 1 }, { type: "step.rewound", step: 1 },
  { type: "text.delta", step: 1, text: "w1 w2 w3" }, { type: "turn.completed", text: "w1 w2 w3" },
];

test("a turn that is taken over in mid-stream is one turn", async () => {
  const taken = log(TAKEN, { first: 4, epoch: 2 });
  await using server = await serving(stream(frames(TURN.slice(0, 3))), stream(frames(taken)));
  const run = clientOf(server).turn("s_1", "hi", { turn: "t_1" });
  assert.deepEqual(seqs(await live(run)), [1, 2, 3, 4, 5, 6, 7]);
  assert.deepEqual(run.state, stateOf([...TURN.slice(0, 3), ...taken]));
});

test("a cursor that the journal never got is answered by a snapshot and nothing is said twice", async () => {
  const taken = log(TAKEN, { first: 3, epoch: 2 });
  const seen = [...TURN.slice(0, 2), taken[0]!];
  await using server = await serving(stream(frames(TURN.slice(0, 3))), stream([OPENING, shown(seen), ...taken.slice(1).map(frame)]));
  const run = clientOf(server).turn("s_1", "hi", { turn: "t_1" });
  await live(run);
  assert.deepEqual([server.cursors, run.state], [[undefined, "1-3"], stateOf([...TURN.slice(0, 2), ...taken])]);
});

test("a second question is waited for like the first", async () => {
  const more = log([
    { type: "turn.resumed", reason: "decision", attempt: 0 },
    { type: "approval.resolved", request: "1-1-1", approved: true, by: "ann" }, { type: "turn.suspended", reason: "approval" },
  ], { first: 7, epoch: 2 });
  const end = [{ type: "turn.resumed", reason: "cancel", attempt: 0 }, { type: "turn.interrupted", reason: "no", by: "ann" }];
  const time = new Clockwork();
  await using server = await serving(
    SUSPENDED, looked([...ASKED, ...more.slice(0, 1)]), stream([frames(more.slice(1)), closing("suspended")]),
    looked([...ASKED, ...more, ...log(end, { first: 10, epoch: 3 })]),
  );
  const updates = await live(clientOf(server, time).turn("s_1", "hi", { turn: "t_1" }));
  assert.deepEqual(statuses(updates), ["connecting", "streaming", "waiting", "streaming", "waiting", "interrupted"]);
  assert.deepEqual(time.slept, [30, 30]);
});

test("a control frame without an id moves nothing", async () => {
  await using server = await serving(stream([frames(TURN.slice(0, 2)), control("text.delta", { text: "x" }), frames(TURN.slice(2))]));
  const run = clientOf(server).turn("s_1", "hi", { turn: "t_1" });
  await live(run);
  assert.ok(PAYLOADS.length && run.state.turns[0]!.output === "w1 w2 w3");
});
