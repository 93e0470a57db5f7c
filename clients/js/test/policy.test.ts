/** What a client does next, decided without a clock, chance or network. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { after, AT_ONCE, begin, hurry, polls, TIMING, type Link, type Outcome, type Plan } from "../src/policy.ts";

const BROKE: Outcome = { kind: "broke", turn: "streaming" };
const SILENT: Outcome = { kind: "silent", turn: "streaming" };
const WAITS: Outcome = { kind: "closed", turn: "waiting", reason: "suspended" };

function follow(outcomes: Outcome[], chance = 1): { link: Link; plans: Plan[]; last: Plan } {
  let link = begin(0);
  const plans: Plan[] = [];
  for (const outcome of outcomes) {
    const [next, plan] = after(link, outcome, TIMING, 0, chance);
    link = next;
    plans.push(plan);
  }
  return { link, plans, last: plans.at(-1)! };
}

const delays = (plans: Plan[]): number[] => plans.map(({ delay = 0 }) => delay);

test("pauses double from one second to thirty", () => {
  const { plans } = follow(Array(8).fill(BROKE));
  assert.deepEqual(delays(plans), [1, 2, 4, 8, 16, 30, 30, 30]);
  assert.ok(plans.every(({ do: what, status }) => what === "connect" && status === "reconnecting"));
});

for (const chance of [0, 0.25, 0.999]) {
  test(`a pause is jittered over its whole window: ${chance}`, () => {
    assert.deepEqual(delays(follow(Array(3).fill(BROKE), chance).plans), [chance, 2 * chance, 4 * chance]);
  });
}

test("the first event resets the pauses, and a mere connection does not", () => {
  const { plans } = follow([BROKE, BROKE, { ...BROKE, lived: 60 }, { ...BROKE, moved: true }, BROKE]);
  assert.deepEqual(delays(plans), [1, 2, 4, 1, 2]);
});

for (const reason of AT_ONCE) {
  test(`an orderly close is followed at once, but not again without news: ${reason}`, () => {
    const closed: Outcome = { kind: "closed", turn: "streaming", moved: true, reason };
    const { plans } = follow([closed, closed, { ...closed, moved: false }]);
    assert.deepEqual(delays(plans), [0, 0, 2]);
    assert.ok(plans.every(({ fresh }) => fresh === (reason === "auth")));
  });
}

for (const turn of [undefined, "streaming", "waiting"] as const) {
  test(`a gap is resumed at once and shown as no break, but not twice without news: ${turn}`, () => {
    const { plans } = follow([{ kind: "gap", turn }, { kind: "gap", turn, moved: true }, { kind: "gap", turn: "streaming" }]);
    assert.deepEqual(plans.slice(0, 2), Array(2).fill({ do: "connect", status: turn ?? "streaming" }));
    assert.deepEqual([plans[2]!.status, plans[2]!.delay], ["reconnecting", 2]);
  });
}

for (const reason of ["slow", "lease", "a later reason"]) {
  test(`any other close is followed after a pause: ${reason}`, () => {
    const { last } = follow([{ kind: "closed", turn: "streaming", moved: true, reason }]);
    assert.deepEqual([last.do, last.delay], ["connect", 1]);
  });
}

for (const asked of [{ kind: "refused", code: 503, pause: 7 }, { kind: "closed", reason: "slow", pause: 7 }] as Outcome[]) {
  test(`a pause that the server asks for is the least: ${asked.kind}`, () => {
    assert.deepEqual(delays(follow(Array(5).fill(asked)).plans), [7, 7, 7, 8, 16]);
  });
}

test("a turn out of reach is reconnecting and after five minutes interrupted with a way to resume", () => {
  assert.equal(after(begin(0), BROKE, TIMING, 299.9, 0)[1].status, "reconnecting");
  assert.deepEqual(after(begin(0), BROKE, TIMING, 300, 0)[1], { do: "stop", status: "interrupted", action: "resume" });
});

for (const contact of [{ ...BROKE, moved: true }, { ...BROKE, lived: 9 }, { kind: "read", turn: "waiting" }] as Outcome[]) {
  test(`contact starts the five minutes anew: ${JSON.stringify(contact)}`, () => {
    const [link] = after(begin(0), contact, TIMING, 299, 0);
    assert.equal(after(link, BROKE, TIMING, 598, 0)[1].do, "connect");
    assert.equal(after(link, BROKE, TIMING, 599, 0)[1].do, "stop");
  });
}

for (const useless of [BROKE, SILENT, { ...BROKE, lived: 0.1 }, { kind: "refused", code: 503 }] as Outcome[]) {
  test(`an attempt that brings nothing is no contact: ${JSON.stringify(useless)}`, () => {
    const [link] = after(begin(0), useless, TIMING, 200, 0);
    assert.equal(after(link, BROKE, TIMING, 300, 0)[1].do, "stop");
  });
}

for (const kind of ["read", "broke", "closed", "gap", "silent", "over"] as const) {
  for (const turn of ["completed", "interrupted", "failed"] as const) {
    test(`an ended turn stops the client however its stream ended: ${kind}, ${turn}`, () => {
      assert.deepEqual(follow([{ kind, turn }]).last, { do: "stop", status: turn });
    });
  }
}

test("a waiting turn is looked at every thirty seconds", () => {
  const looks = Array(3).fill({ do: "look", status: "waiting", delay: 30 });
  assert.deepEqual(follow(Array(3).fill(WAITS)).plans, looks);
  assert.deepEqual(follow(Array(3).fill({ ...WAITS, kind: "read" })).plans, looks);
});

test("a turn decided on here is reached for at once and a few times more", () => {
  let [link, plan] = hurry(follow([WAITS]).link);
  assert.deepEqual(plan, { do: "connect", status: "waiting" });
  const plans = [];
  for (let at = 0; at < 4; at++) {
    [link, plan] = after(link, WAITS, TIMING, 0, 1);
    plans.push([plan.do, plan.delay]);
  }
  assert.deepEqual(plans, [["connect", 1], ["connect", 2], ["connect", 4], ["look", 30]]);
});

test("a turn that went on and waits again waits as any other", () => {
  const [link] = hurry(begin(0));
  assert.equal(after(link, { ...WAITS, moved: true }, TIMING, 0, 1)[1].do, "look");
});

test("a turn found streaming by a look is connected to", () => {
  const { last } = follow([WAITS, { kind: "read", turn: "streaming", moved: true }]);
  assert.deepEqual(last, { do: "connect", status: "streaming" });
});

test("a refused token is refreshed once, then the turn is left to be resumed", () => {
  const refused: Outcome = { kind: "refused", code: 401 };
  const { plans } = follow([refused, refused]);
  assert.deepEqual(plans[0], { do: "connect", status: "reconnecting", fresh: true });
  assert.deepEqual(plans[1], { do: "stop", status: "interrupted", action: "resume" });
  assert.ok(follow([refused, { ...BROKE, moved: true }, refused]).last.fresh);
});

for (const code of [404, 410]) {
  test(`a turn that is gone is interrupted with a way to send it again: ${code}`, () => {
    assert.deepEqual(follow([{ kind: "refused", code }]).last, { do: "stop", status: "interrupted", action: "retry" });
  });
}

for (const code of [302, 307, 408, 425, 429, 500, 502, 503, 504]) {
  test(`a passing refusal is tried again: ${code}`, () => {
    const { last } = follow([{ kind: "refused", code }]);
    assert.deepEqual([last.do, last.delay], ["connect", 1]);
  });
}

for (const code of [400, 403, 405, 406, 409, 413, 415, 422]) {
  test(`any other refusal is final: ${code}`, () => {
    assert.deepEqual(follow([{ kind: "refused", code }]).last, { do: "refuse", status: "failed" });
  });
}

test("two silent answers lead to the long poll for good", () => {
  const opening = { ...SILENT, lived: 0.1 };
  assert.ok(!polls(follow([SILENT]).link));
  assert.ok(polls(follow([SILENT, BROKE, SILENT, { ...BROKE, moved: true, lived: 9 }]).link));
  assert.ok(polls(follow([opening, opening]).link));
});

test("a byte between two silences keeps the stream", () => {
  const opening = { ...SILENT, lived: 0.1 };
  assert.ok(!polls(follow([SILENT, { ...BROKE, lived: 1 }, SILENT]).link));
  assert.ok(!polls(follow([opening, { ...opening, moved: true }]).link));
  assert.ok(!polls(follow([opening, { ...SILENT, lived: 9 }, opening]).link));
});

test("long polls follow one another at once unless one came back at once with nothing", () => {
  const read: Outcome = { kind: "read", turn: "streaming" };
  assert.deepEqual(delays(follow([{ ...read, moved: true }, { ...read, lived: 20 }, read, read]).plans), [0, 0, 1, 2]);
});

test("an end that the state does not know costs one look", () => {
  const over: Outcome = { kind: "over", turn: "streaming" };
  assert.deepEqual(follow([over]).last, { do: "look", status: "reconnecting" });
  const { last } = follow([over, { kind: "read", turn: "streaming", moved: true }, over]);
  assert.deepEqual(last, { do: "stop", status: "interrupted", action: "retry" });
});
