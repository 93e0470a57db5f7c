/** A canonical turn in all its pieces, and a client that plays it against a scripted server. */
import { readdirSync, readFileSync } from "node:fs";
import { LegatoClient, type Options } from "../src/client.ts";
import { empty, reduce, type Event, type SessionState } from "../src/reducer.ts";
import type { Run, Update } from "../src/run.ts";
import { json, type Answer, type Scripted } from "./scripted.ts";

export const OPENING = `retry: 1000\n:${" ".repeat(4096)}\n\n`;
export const PING = ": ping\n\n";

type Payload = { type: string; [field: string]: any };

export function log(payloads: Payload[], { first = 1, turn = "t_1", epoch = 1 } = {}): Event[] {
  return payloads.map(({ type, ...rest }, at) => ({ seq: first + at, epoch, turn, at: 5, type, ...rest }));
}

export const frame = (event: Event): string =>
  `id: ${event.epoch}-${event.seq}\nevent: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`;
export const frames = (events: Event[]): string => OPENING + events.map(frame).join("");
export const control = (event: string, data: object, id?: string): string =>
  `${id ? `id: ${id}\n` : ""}event: ${event}\ndata: ${JSON.stringify(data)}\n\n`;
export const closing = (reason: string, more: object = {}): string => control("stream.closing", { reason, ...more });
export const stateOf = (events: Event[]): SessionState => events.reduce(reduce, empty("s_1"));
export const shown = (events: Event[]): string => control("snapshot", stateOf(events), stateOf(events).cursor);
export const looked = (events: Event[]): Answer => json(stateOf(events));

export const PAYLOADS: Payload[] = [
  { type: "turn.started", input: "hi", agent: "demo" },
  { type: "text.delta", step: 1, text: "w1 " },
  { type: "text.delta", step: 1, text: "w2 \u2028\u{1f600} " },
  { type: "tool.call", step: 1, call: "1-1", name: "lookup", arguments: { key: "a" }, effect: "read" },
  { type: "tool.result", call: "1-1", ok: true, content: "data: x\n\nid: 9-9" },
  { type: "text.delta", step: 2, text: "w3" },
  { type: "turn.completed", text: "w1 w2 w3", usage: {}, finish_reason: "stop" },
];
export const TURN = log(PAYLOADS);
export const FINAL = stateOf(TURN);
export const WHOLE = Buffer.from(frames(TURN));
export const SEQS = TURN.map((event) => event.seq);
export const WAITING = log([...PAYLOADS.slice(0, 4), { type: "turn.suspended", reason: "approval" }]);
export const ASKED = log([
  ...PAYLOADS.slice(0, 3),
  { type: "tool.call", step: 1, call: "1-1", name: "wire", arguments: { amount: 5 }, effect: "once" },
  { type: "approval.requested", request: "1-1-1", call: "1-1", kind: "approval", prompt: "Wire 5?", expires_at: 99 },
  { type: "turn.suspended", reason: "approval" },
]);
export const GOES_ON = log(
  [
    { type: "turn.resumed", reason: "decision", attempt: 0 },
    { type: "approval.resolved", request: "1-1-1", approved: true, by: "ann" },
    { type: "tool.result", call: "1-1", ok: true, content: "sent" },
    { type: "turn.completed", text: "w1 w2", usage: {}, finish_reason: "stop" },
  ],
  { first: 7, epoch: 2 },
);

/** Time that passes only in sleeps, which are written down. */
export class Clockwork {
  now = 0;
  readonly slept: number[] = [];

  clock = (): number => this.now;
  sleep = async (seconds: number, _?: AbortSignal): Promise<void> => {
    this.now += seconds;
    if (seconds) this.slept.push(seconds);
    await new Promise(setImmediate);
  };
}

/** Time in which a look's pause ends only when it is cut short. */
export class Held extends Clockwork {
  #looks: () => void = () => {};
  readonly looks = new Promise<void>((looks) => (this.#looks = looks));

  override sleep = async (seconds: number, signal?: AbortSignal): Promise<void> => {
    if (seconds) this.slept.push(seconds);
    if (seconds < 30 || !signal) return;
    this.#looks();
    await new Promise((awake) => signal.addEventListener("abort", awake));
  };
}

export type Playing = Omit<Options, "timing"> & { token?: ConstructorParameters<typeof LegatoClient>[1]; timing?: Options["timing"] };

export function clientOf(server: Scripted, time = new Clockwork(), { token = "dev:ann", ...options }: Playing = {}): LegatoClient {
  const { clock, sleep } = time;
  const timing = { silence: 5, ...options.timing };
  return new LegatoClient(server.url, token, { clock, sleep, chance: () => 1, ...options, timing });
}

export async function live(run: Run): Promise<Update[]> {
  const updates = [];
  for await (const update of run) updates.push(update);
  return updates;
}

export async function play(server: Scripted, time?: Clockwork, options?: Playing): Promise<{ run: Run; updates: Update[] }> {
  const run = clientOf(server, time, options).turn("s_1", "hi", { turn: "t_1" });
  return { run, updates: await live(run) };
}

export const seqs = (updates: Update[]): number[] => updates.flatMap(({ event }) => (event ? [event.seq] : []));

export function statuses(updates: { status: string }[]): string[] {
  return updates.map(({ status }) => status).filter((status, at, all) => status !== all[at - 1]);
}

/** A storage as browsers have it. */
export class Shelf {
  readonly kept = new Map<string, string>();
  writes = 0;
  getItem = (key: string): string | null => this.kept.get(key) ?? null;
  setItem = (key: string, value: string): void => void (this.kept.set(key, value), this.writes++);
  removeItem = (key: string): void => void this.kept.delete(key);
}

export function cases(of: string): any[] {
  const directory = new URL(`../../../../tests/cases/${of}/`, import.meta.url);
  const names = readdirSync(directory).filter((name) => name.endsWith(".json")).sort();
  return names.flatMap((name) => JSON.parse(readFileSync(new URL(name, directory), "utf8")).map((found: any) => ({ file: name, ...found })));
}

/** Resolves once `condition` holds of the session's view. */
export function until(session: { subscribe(listener: () => void): () => void; view(): any }, condition: (view: any) => boolean): Promise<any> {
  return new Promise((holds) => {
    const look = () => condition(session.view()) && (holds(session.view()), leave());
    const leave = session.subscribe(() => queueMicrotask(look));
    look();
  });
}
