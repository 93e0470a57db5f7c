/** A turn is interrupted at each place where it can be: its client ends in what the journal has, nothing twice. */
import assert from "node:assert/strict";
import { after, describe, test } from "node:test";
import { LegatoClient, text, type Event, type SessionState, type TurnState, type Update } from "../src/legato-client.ts";
import { sessionOf } from "../src/session.ts";
import { A, B, ledger, MORTAL, MORTAL_GROUP, Way } from "./way.ts";

/** The place behind the first event of type `after` (with the text `word`), when `said` words have been said; the turn
 * stays there for HOLD seconds. `tool`: what a cancel there makes of its tool. */
interface Boundary {
  script: string;
  said: number;
  after: string;
  word?: string;
  tool?: string;
  failed?: string;
}

const TOOL = '/tool transfer {"amount": 7}';
const END = `/say 4 40\n${TOOL}\n/say 4 40\n/sleep HOLD`;
const last = { said: 8, after: "text.delta", word: "w8 ", tool: "ok" };
const BOUNDARIES: Record<string, Boundary> = {
  "before-the-first-delta": { script: `/sleep HOLD\n/say 4 40\n${TOOL}\n/say 4 40`, said: 0, after: "turn.started" },
  "in-text": { script: `/say 2 40\n/sleep HOLD\n/say 2 40\n${TOOL}\n/say 4 40`, said: 2, after: "text.delta", word: "w2 " },
  "after-a-call": { script: '/say 4 40\n/tool transfer {"amount": 7, "seconds": 1}\n/sleep HOLD\n/say 4 40', said: 4, after: "tool.call", tool: "ok" },
  "during-a-call": { script: `/say 4 40\n/tool slow {"seconds": HOLD}\n${TOOL}\n/say 4 40`, said: 4, after: "tool.progress", tool: "unsettled" },
  "after-its-result": { script: `/say 4 40\n${TOOL}\n/sleep HOLD\n/say 4 40`, said: 4, after: "tool.result", tool: "ok" },
  "after-the-last-delta": { script: END, ...last },
  "before-a-failure": { script: `${END}\n/fail broken`, ...last, failed: "scripted" },
  "before-the-model-breaks-off": { script: `${END}\n/drop`, ...last, failed: "model_broken_off" },
};
const NAMES = Object.keys(BOUNDARIES);
const CUTS = 60;
const CANONICAL = '/say 28 60\n/tool transfer {"amount": 7}\n/say 28 60';

const clients: LegatoClient[] = [];
after(() => clients.forEach((client) => client.close()));

function clientOf(url: string): LegatoClient {
  const client = new LegatoClient(url, "dev:ann", { timing: { first: 0.2 } });
  clients.push(client);
  return client;
}

const words = (count: number): string => Array.from({ length: count }, (_, at) => `w${at + 1} `).join("");
const transfers = (session: string): number => ledger().filter((line) => line.includes(`"${session}/t/`)).length;

/** Whatever is shown holds the words in order, each once; only a completed turn has an output. */
function honest({ state }: Update): void {
  for (const turn of [...state.turns, ...(state.active ? [state.active] : [])]) {
    assert.ok(words(56).startsWith(turn.output ?? turn.partial ?? text(turn)));
    assert.equal(turn.output !== undefined, turn.status === "completed");
    assert.equal(turn.partial !== undefined, ["interrupted", "failed"].includes(turn.status));
  }
}

/** Node's fetch may take a connection that its server is about to close. */
async function stands(session: string): Promise<SessionState> {
  const client = clientOf(B);
  return client.snapshot(session).catch(() => client.snapshot(session));
}

/** The turn in the end, as its client has it and the journal too, when `interrupt` came at the first event that is `at`. */
async function lived(
  session: string, script: string, at: (event: Event) => boolean, interrupt: (way: Way) => unknown, first = A,
): Promise<TurnState> {
  await using way = await new Way(first).open();
  const run = clientOf(way.url).turn(session, script, { turn: "t" });
  let came = false;
  for await (const update of run) {
    honest(update);
    if (came || !update.event || !at(update.event)) continue;
    came = true;
    await interrupt(way);
  }
  const { before, ...stored } = await stands(session);
  assert.deepEqual([came, run.action, run.state], [true, undefined, stored]);
  return stored.turns[0]!;
}

function bounded(
  session: string, name: string, hold: number, interrupt: (way: Way) => unknown, first?: string,
): Promise<TurnState> {
  const { script, after, word } = BOUNDARIES[name]!;
  const at = ({ type, text }: Event) => type === after && (word === undefined || text === word);
  return lived(session, script.replace("HOLD", String(hold)), at, interrupt, first);
}

/** The turn is what it is when nothing interrupts it. */
function undisturbed(name: string, turn: TurnState): void {
  const { failed } = BOUNDARIES[name]!;
  assert.equal(failed ? turn.partial : turn.output, words(8), name);
  assert.deepEqual([turn.error?.code, turn.tools.every(({ status }) => status === "ok")], [failed, true], name);
}

describe("instances over one journal", { concurrency: true }, () => {
  test("a turn cut after any of its events and resumed elsewhere is the turn itself", async () => {
    const cut = async (k: number) => {
      const turn = await lived(`cut-${k}`, CANONICAL, ({ seq }) => seq === k, (way) => way.cut(B));
      assert.deepEqual([turn.output, transfers(`cut-${k}`)], [words(56), 1]);
    };
    await Promise.all(Array.from({ length: CUTS }, (_, at) => cut(at + 1)));
  });

  for (const [where, to] of [["there", A], ["elsewhere", B]] as const) {
    test(`a turn that is cut is whole when resumed ${where}`, async () => {
      await Promise.all(NAMES.map(async (name) => {
        undisturbed(name, await bounded(`${where}-${name}`, name, 1, (way) => way.cut(to)));
        assert.equal(transfers(`${where}-${name}`), 1);
      }));
    });
  }

  test("a turn that is cancelled keeps what it said as partial", async () => {
    await Promise.all(NAMES.map(async (name) => {
      const turn = await bounded(name, name, 60, () => clientOf(B).cancel(name, "t", "enough"));
      const { said, tool } = BOUNDARIES[name]!;
      assert.deepEqual([turn.status, turn.partial], ["interrupted", words(said)], name);
      assert.deepEqual(turn.tools.map(({ status }) => status), tool ? [tool] : [], name);
    }));
  });

  test("a turn that waits for a person goes on where it is answered", async () => {
    const client = clientOf(A);
    const run = client.turn("asked", '/say 4 40\n/tool wire {"amount": 7}\n/say 4 40', { turn: "t" });
    for await (const { status, state } of run) {
      const [question] = state.active?.approvals ?? [];
      if (status === "waiting" && question) void client.decide("asked", "t", question.request, true);
    }
    assert.deepEqual([run.status, run.turn!.output, transfers("asked")], ["completed", words(8), 1]);
  });

  test("a turn that waits for a credential goes on where that is supplied", async () => {
    const client = clientOf(A);
    const run = client.turn("supplied", '/say 4 40\n/tool mail {"to": "bob"}\n/say 4 40', { turn: "t" });
    for await (const { status, state } of run) {
      const [required] = state.active?.credentials ?? [];
      if (status === "waiting" && required) void client.supply("supplied", "t", required.name, "secret");
    }
    assert.deepEqual([run.turn!.output, run.turn!.tools.map(({ status }) => status)], [words(8), ["ok"]]);
  });

  test("a token of eight seconds under a turn of nine is replaced in mid-stream, and the stream lives on", async () => {
    const asked: string[] = [];
    const fetched = (url: string, init: RequestInit) => (asked.push(new URL(url).pathname.split("/").at(-1)!), fetch(url, init));
    const client = new LegatoClient(A, () => `dev:ann:${Date.now() + 8000}`, { fetch: fetched });
    const run = client.turn("tokens", "/say 56 6", { turn: "t" });
    for await (const update of run) honest(update);
    assert.equal(run.turn!.output, words(56));
    assert.deepEqual([asked[0], [...new Set(asked.slice(1))]], ["turns", ["auth"]]);
  });

  test("a session that is followed shows the turns that are sent in it, through every cut", async () => {
    await using way = await new Way(A).open();
    const session = sessionOf(clientOf(way.url), "shown");
    const said = new Promise<void>((done) => {
      const leave = session.subscribe(() => {
        const { state } = session.view();
        if (state.turns.length === 2) queueMicrotask(() => (leave(), done()));
        if (state.active?.draft.length === 1 && text(state.active).endsWith("w3 ")) way.cut(way.to === A ? B : A);
      });
    });
    await session.send("/say 8 40\n/sleep 60");
    await session.send("/say 8 40", { if_active: "interrupt" });
    await said;
    assert.deepEqual(session.view().state.turns.map(({ status }) => status), ["interrupted", "completed"]);
    assert.equal(session.view().state.turns[1]!.output, words(8));
  });

  test("a turn whose owner is killed is whole when another goes on with it", async () => {
    let held = 0;
    let kill: () => void;
    const everywhere = new Promise<void>((resolve) => (kill = resolve));
    void everywhere.then(() => process.kill(-MORTAL_GROUP, "SIGKILL"));
    await Promise.all(NAMES.map(async (name) => {
      const turn = await bounded(`killed-${name}`, name, 4, async (way) => {
        way.to = B;
        if (++held === NAMES.length) kill();
        await everywhere;
      }, MORTAL);
      undisturbed(name, turn);
      assert.equal(transfers(`killed-${name}`), 1);
    }));
  });
});
