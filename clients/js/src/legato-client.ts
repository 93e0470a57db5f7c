export { LegatoClient, type Options, type TurnOptions } from "./client.ts";
export type { Lifecycle } from "./lifecycle.ts";
export type { Action, Status, Timing } from "./policy.ts";
export { questions, reduce, restore, SequenceGap, text } from "./reducer.ts";
export type {
  Approval, ErrorInfo, Event, Json, Part, SessionState, ToolState, TurnState, TurnStatus,
} from "./reducer.ts";
export { Run, type Update } from "./run.ts";
export { Session, type View } from "./session.ts";
export type { Sent, Storage } from "./store.ts";
export type { Channel, Locks, Sharing } from "./tabs.ts";
export { Broken, LegatoError, type Fetch, type Token } from "./wire.ts";
