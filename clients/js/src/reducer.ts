/**
 * The one reducer: what a session looks like after its events. The same rules run in every client.
 *
 * Rules of this file:
 * - `reduce` is pure. A state is the JSON of a `snapshot`; a piece that an event does not change stays the same object.
 * - An event at or below the state's `seq` changes nothing. One that leaves a hole, or is of another epoch and not the
 *   next one's fence, throws `SequenceGap`. Only `restore` (a snapshot) may set `seq` back.
 * - TAKES says what a turn takes in each status. Anything else changes nothing but `seq`.
 * - Only `turn.completed` turns a draft into an output; any other end keeps it as `partial`.
 */
export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
export type TurnStatus = "streaming" | "waiting" | "completed" | "interrupted" | "failed";

/** What one step has said so far. */
export interface Part {
  readonly step: number;
  readonly text: string;
}

export interface ErrorInfo {
  readonly code: string;
  readonly message: string;
}

/** One call of a tool. `unsettled`: its turn ended before. */
export interface ToolState {
  readonly call: string;
  readonly step: number;
  readonly name: string;
  readonly arguments?: Json;
  readonly effect: "read" | "idempotent" | "once";
  readonly status: "running" | "ok" | "error" | "unsettled";
  readonly content?: Json;
  readonly error?: ErrorInfo;
  readonly message?: string;
  readonly fraction?: number;
}

/** A question to a person; `approved` is absent while it is open. `expires_at` is in ms. */
export interface Approval {
  readonly request: string;
  readonly call: string;
  readonly kind: string;
  readonly prompt: string;
  readonly expires_at: number;
  readonly approved?: boolean;
  readonly by?: string;
  readonly note?: string;
}

/** A credential that the turn waits for; only its user can give it. `expires_at` is in ms. */
export interface RequiredCredential {
  readonly name: string;
  readonly reason: string;
  readonly expires_at: number;
}

/** One turn as its events tell it. While it runs its text is in `draft`; afterwards in `output` or `partial`. */
export interface TurnState {
  readonly turn: string;
  readonly status: TurnStatus;
  readonly input?: Json;
  readonly agent: string;
  readonly draft: readonly Part[];
  readonly reasoning: readonly Part[];
  readonly tools: readonly ToolState[];
  readonly approvals: readonly Approval[];
  readonly credentials: readonly RequiredCredential[];
  readonly output?: string;
  readonly partial?: string;
  readonly error?: ErrorInfo;
  readonly usage?: Readonly<Record<string, number>>;
  readonly finish_reason?: string;
}

/** A session as a client knows it: `cursor` is the last event reduced, `turns` the ended ones, oldest first; `before`
 * names the page of older ones, where the service said so. */
export interface SessionState {
  readonly cursor: string;
  readonly session: string;
  readonly turns: readonly TurnState[];
  readonly active: TurnState | null;
  readonly before?: number;
}

/** One numbered fact, as the service sends it. `at` is in ms. */
export interface Event {
  readonly seq: number;
  readonly epoch: number;
  readonly turn: string;
  readonly at: number;
  readonly type: string;
  readonly [field: string]: any;
}

/** An event does not follow on what the state has: resume from the cursor instead of reducing it. */
export class SequenceGap extends Error {
  readonly code = "sequence_gap";
}

export const text = (turn: TurnState): string => turn.draft.map((part) => part.text).join("");
export const empty = (session: string): SessionState => ({ cursor: "0-0", session, turns: [], active: null });

export function find(state: SessionState, turn: string): TurnState | undefined {
  return state.active?.turn === turn ? state.active : state.turns.findLast((known) => known.turn === turn);
}

export const ended = (status: string | undefined): boolean => status !== undefined && !(status in TAKES);

/** The state that a snapshot's JSON stands for. Throws TypeError when it is none. */
export function restore(fields: any): SessionState {
  parse(fields.cursor);
  const active = fields.active ? turnOf(fields.active) : null;
  const state = { cursor: fields.cursor, session: String(fields.session), turns: fields.turns.map(turnOf), active };
  return fields.before == null ? state : { ...state, before: fields.before };
}

/** The state after `event`, which is the state itself where it has that already. Throws SequenceGap. */
export function reduce(state: SessionState, event: Event): SessionState {
  const [epoch, seq] = parse(state.cursor);
  if (event.seq <= seq) return state;
  const fence = event.type === "turn.started" || event.type === "turn.resumed";
  const begins = fence && event.epoch === epoch + 1;
  const cursor = `${event.epoch}-${event.seq}`;
  if (event.seq !== seq + 1 || !(begins || epoch === 0 || event.epoch === epoch)) {
    throw new SequenceGap();
  }
  const { active } = state;
  if (event.type === "turn.started" && !active && !find(state, event.turn)) {
    return { ...state, cursor, active: turnOf({ ...event, status: "streaming" }) };
  }
  if (active?.turn !== event.turn) return { ...state, cursor };
  const turn = advance(active, event);
  return ended(turn.status)
    ? { ...state, cursor, turns: [...state.turns, turn], active: null }
    : { ...state, cursor, active: turn };
}

/** The turn after `event`; the turn itself where TAKES does not let it in. */
export function advance(turn: TurnState, event: Event): TurnState {
  const status = TAKES[turn.status]?.(event.type);
  return status ? { ...turn, ...HANDLERS[event.type]?.(turn, event), status } : turn;
}

/** `state`, made of the objects of `before` wherever those say the same. */
export function reuse(before: SessionState, state: SessionState): SessionState {
  if (same(before, state)) return before;
  const known = (turn: TurnState): TurnState => {
    const found = find(before, turn.turn);
    return found && same(found, turn) ? found : turn;
  };
  return { ...state, turns: state.turns.map(known), active: state.active && known(state.active) };
}

const same = (one: unknown, other: unknown): boolean => JSON.stringify(one) === JSON.stringify(other);

/** The number of the last event that a state has. */
export const seqOf = (state: SessionState): number => parse(state.cursor)[1];

/** Epoch and seq. Throws TypeError. */
function parse(cursor: unknown): [number, number] {
  const found = /^(\d{1,15})-(\d{1,15})$/.exec(String(cursor));
  if (!found) throw new TypeError();
  return [Number(found[1]), Number(found[2])];
}

/** Of `fields` those that are named and not null. */
function pick(fields: any, ...names: string[]): any {
  return Object.fromEntries(names.filter((name) => fields[name] != null).map((name) => [name, fields[name]]));
}

function turnOf(fields: any): TurnState {
  const lists = { draft: [], reasoning: [], tools: [], approvals: [], credentials: [] };
  const ends = ["output", "partial", "error", "usage", "finish_reason"];
  return { ...pick(fields, "turn", "status", "input", "agent"), ...lists, ...pick(fields, ...Object.keys(lists), ...ends) };
}

type Handler = (turn: TurnState, event: Event) => Partial<TurnState>;

const extend = (parts: readonly Part[], { step, text }: Event): Part[] => {
  const last = parts.at(-1);
  return last?.step === step ? [...parts.slice(0, -1), { step, text: last!.text + text }] : [...parts, { step, text }];
};
const without = (parts: readonly Part[], step: number): Part[] => parts.filter((part) => part.step !== step);

/** Changes a call that is not settled yet; a second result, or one for a call nobody made, changes nothing. */
const running = (turn: TurnState, call: string, change: (tool: ToolState) => ToolState): Partial<TurnState> => ({
  tools: turn.tools.map((tool) => (tool.call === call && tool.status === "running" ? change(tool) : tool)),
});

const addition = (list: string, items: readonly any[], key: string, item: any): Partial<TurnState> =>
  items.some((known) => known[key] === item[key]) ? {} : { [list]: [...items, item] };

const end = ({ tools }: TurnState): Partial<TurnState> => ({
  draft: [],
  reasoning: [],
  approvals: [],
  credentials: [],
  tools: tools.map((tool) => (tool.status === "running" ? { ...tool, status: "unsettled" } : tool)),
});

const requiredNoMore: Handler = ({ credentials }, { name }) => ({
  credentials: credentials.filter((known) => known.name !== name),
});

const HANDLERS: Record<string, Handler> = {
  "turn.resumed": () => ({}),
  "text.delta": (turn, event) => ({ draft: extend(turn.draft, event) }),
  "reasoning.delta": (turn, event) => ({ reasoning: extend(turn.reasoning, event) }),
  "step.rewound": (turn, { step }) => ({ draft: without(turn.draft, step), reasoning: without(turn.reasoning, step) }),
  "tool.call": ({ tools }, event) =>
    addition("tools", tools, "call", { ...pick(event, "call", "step", "name", "arguments", "effect"), status: "running" }),
  "tool.progress": (turn, event) =>
    running(turn, event.call, ({ message, fraction, ...tool }) => ({ ...tool, ...pick(event, "message", "fraction") })),
  "tool.result": (turn, event) =>
    running(turn, event.call, (tool) => ({
      ...tool,
      status: event.ok ? "ok" : "error",
      ...pick(event, "content", "error"),
    })),
  "approval.requested": ({ approvals }, event) =>
    addition("approvals", approvals, "request", pick(event, "request", "call", "kind", "prompt", "expires_at")),
  "approval.resolved": ({ approvals }, event) => ({
    approvals: approvals.map((asked) =>
      asked.request === event.request && asked.approved === undefined
        ? { ...asked, ...pick(event, "approved", "by", "note") }
        : asked,
    ),
  }),
  "credential.required": ({ credentials }, event) =>
    addition("credentials", credentials, "name", pick(event, "name", "reason", "expires_at")),
  "credential.supplied": requiredNoMore,
  "credential.withdrawn": requiredNoMore,
  "turn.completed": (turn, event) => ({
    ...end(turn),
    output: event.text,
    usage: event.usage ?? {},
    finish_reason: event.finish_reason ?? "stop",
  }),
  "turn.interrupted": (turn) => ({ ...end(turn), partial: text(turn) }),
  "turn.failed": (turn, { code, message }) => ({ ...end(turn), partial: text(turn), error: { code, message } }),
};

const ENDS: Record<string, TurnStatus> = {
  "turn.completed": "completed",
  "turn.interrupted": "interrupted",
  "turn.failed": "failed",
};
/** What a turn is after an event of that type, which it takes in no other case. */
const TAKES: Record<string, (type: string) => TurnStatus | undefined> = {
  streaming: (type) => (type === "turn.suspended" ? "waiting" : ENDS[type] ?? (type in HANDLERS ? "streaming" : undefined)),
  waiting: (type) => (type === "turn.resumed" ? "streaming" : type === "turn.completed" ? undefined : ENDS[type]),
};
