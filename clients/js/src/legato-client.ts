export { LegatoClient, type Options, type TurnOptions } from "./client.ts";
export type { Lifecycle } from "./lifecycle.ts";
export { passing, type Action, type Status, type Timing } from "./policy.ts";
export { empty, find, reduce, restore, reuse, SequenceGap, seqOf, text } from "./reducer.ts";
export type {
  Approval, ErrorInfo, Event, Json, Part, RequiredCredential, SessionState, ToolState, TurnState, TurnStatus,
} from "./reducer.ts";
export { Run, type Update } from "./run.ts";
export type { Sent, Storage } from "./store.ts";
export type { Channel, Locks, Sharing } from "./tabs.ts";
export { Broken, checked, LegatoError, type Fetch, type Token } from "./wire.ts";
