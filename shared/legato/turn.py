"""The one reducer: what a session looks like after its events. The same rules run in every client.

Rules of this file:
- `reduce` is pure. The same events give the same state, however often and in whatever pieces they are delivered.
- An event at or below the state's `seq` changes nothing. One that leaves a hole raises `SequenceGap`, and so does one
  of another epoch that is not the next one's fence: what the state has was shown and lost with its owner, or is of a
  past that is gone. Only `restore` (a snapshot) may set `seq` back.
- TRANSITIONS names what a turn takes in each status. Anything else changes nothing but `seq`.
- `text.delta` extends only the draft of a streaming turn. Tool events never touch text. Only `turn.completed`
  turns a draft into an output; any other end keeps it as `partial`.
- After its terminal event a turn takes nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final, Literal

from pydantic import JsonValue, TypeAdapter

from legato import events
from legato.errors import SequenceGap
from legato.events import Cursor, Effect, ErrorInfo, Event, Payload, Usage

Status = Literal["streaming", "waiting", "completed", "interrupted", "failed"]
FENCES: Final = frozenset({"turn.started", "turn.resumed"})
"""What an epoch begins with."""
ENDED: Final = frozenset({"completed", "interrupted", "failed"})

_STREAMING: Final[dict[str, Status]] = {
    "text.delta": "streaming",
    "reasoning.delta": "streaming",
    "tool.call": "streaming",
    "tool.progress": "streaming",
    "tool.result": "streaming",
    "approval.requested": "streaming",
    "approval.resolved": "streaming",
    "credential.required": "streaming",
    "credential.supplied": "streaming",
    "credential.withdrawn": "streaming",
    "step.rewound": "streaming",
    "turn.resumed": "streaming",
    "turn.suspended": "waiting",
    "turn.completed": "completed",
    "turn.interrupted": "interrupted",
    "turn.failed": "failed",
}
TRANSITIONS: Final[dict[Status, dict[str, Status]]] = {
    "streaming": _STREAMING,
    "waiting": {"turn.resumed": "streaming", "turn.interrupted": "interrupted", "turn.failed": "failed"},
    "completed": {},
    "interrupted": {},
    "failed": {},
}


@dataclass(frozen=True, slots=True)
class Part:
    """What one step has said so far."""

    step: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolState:
    """One call of a tool. `status`: `running`; `ok` or `error` once settled; `unsettled` when its turn ended before."""

    call: str
    step: int
    name: str
    arguments: JsonValue = None
    effect: Effect = "once"
    status: Literal["running", "ok", "error", "unsettled"] = "running"
    content: JsonValue = None
    error: ErrorInfo | None = None
    message: str | None = None
    fraction: float | None = None


@dataclass(frozen=True, slots=True)
class Approval:
    """A question to a person; `approved` is None while it is open."""

    request: str
    call: str
    kind: str
    prompt: str
    expires_at: int
    approved: bool | None = None
    by: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class RequiredCredential:
    """A credential that the turn waits for; only its user can give it."""

    name: str
    reason: str
    expires_at: int

    @property
    def request(self) -> str:
        return events.credential_request(self.name, self.expires_at)


@dataclass(frozen=True, slots=True)
class TurnState:
    """One turn as its events tell it. While it runs its text is in `draft`; afterwards in `output` or `partial`."""

    turn: str
    status: Status
    input: JsonValue = None
    agent: str = ""
    draft: tuple[Part, ...] = ()
    reasoning: tuple[Part, ...] = ()
    tools: tuple[ToolState, ...] = ()
    approvals: tuple[Approval, ...] = ()
    credentials: tuple[RequiredCredential, ...] = ()
    output: str | None = None
    partial: str | None = None
    error: ErrorInfo | None = None
    usage: Usage | None = None
    finish_reason: str | None = None

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    @property
    def questions(self) -> tuple[Approval, ...]:
        """Those that are open, oldest first."""
        return tuple(asked for asked in self.approvals if asked.approved is None)

    @property
    def waits_for(self) -> tuple[Approval | RequiredCredential, ...]:
        """All that it asks of a person and has no answer to."""
        return (*self.questions, *self.credentials)

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.draft)

    def accepts(self, kind: str) -> bool:
        return kind in TRANSITIONS[self.status]


@dataclass(frozen=True, slots=True)
class SessionState:
    """A session as a client knows it: `cursor` is the last event reduced, `turns` the ended ones, oldest first."""

    session: str
    cursor: Cursor = Cursor(0, 0)
    turns: tuple[TurnState, ...] = ()
    active: TurnState | None = None

    def find(self, turn: str) -> TurnState | None:
        if self.active and self.active.turn == turn:
            return self.active
        return next((ended for ended in reversed(self.turns) if ended.turn == turn), None)


_SNAPSHOT: Final[TypeAdapter[SessionState]] = TypeAdapter(SessionState)


def snapshot(state: SessionState) -> dict[str, Any]:
    """The state as the JSON of a `snapshot` frame; `cursor` is its wire text."""
    fields: dict[str, Any] = _SNAPSHOT.dump_python(state, mode="json", exclude_none=True)
    return {
        "cursor": str(state.cursor),
        "session": state.session,
        "turns": fields["turns"],
        "active": fields.get("active"),
    }


def restore(fields: dict[str, Any]) -> SessionState:
    """The state a snapshot stands for; the inverse of `snapshot`. Raises ValueError when it is none."""
    cursor = Cursor.parse(str(fields.get("cursor")))
    if cursor is None:
        raise ValueError(f"not a snapshot: cursor is {fields.get('cursor')!r}")
    return _SNAPSHOT.validate_python({**fields, "cursor": cursor})


def reduce(state: SessionState, event: Event) -> SessionState:
    """The state after `event`. Raises SequenceGap when that does not follow on what the state has."""
    if event.seq <= state.cursor.seq:
        return state
    if event.seq != state.cursor.seq + 1 or not _follows(state.cursor, event):
        raise SequenceGap(f"event {Cursor(event.epoch, event.seq)} does not follow {state.cursor}: resume from there")
    cursor = Cursor(event.epoch, event.seq)
    if isinstance(event.payload, events.TurnStarted) and state.active is None and state.find(event.turn) is None:
        begun = TurnState(event.turn, "streaming", event.payload.input, event.payload.agent)
        return replace(state, cursor=cursor, active=begun)
    if state.active is None or state.active.turn != event.turn:
        return replace(state, cursor=cursor)
    turn = advance(state.active, event.payload)
    if turn.ended:
        return replace(state, cursor=cursor, turns=(*state.turns, turn), active=None)
    return replace(state, cursor=cursor, active=turn)


def _follows(cursor: Cursor, event: Event) -> bool:
    """It is of the cursor's epoch, or begins the next one; epoch 0 stands for any."""
    begins = event.type in FENCES and event.epoch == cursor.epoch + 1
    return begins or cursor.epoch in (0, event.epoch)


def advance(turn: TurnState, payload: Payload) -> TurnState:
    """The turn after `payload`; the turn itself where TRANSITIONS does not let it in."""
    status = TRANSITIONS[turn.status].get(payload.type)
    if status is None:
        return turn
    handler = _HANDLERS.get(payload.type)
    moved = handler(turn, payload) if handler else turn
    return moved if moved.status == status else replace(moved, status=status)


def merged(payloads: Iterable[Payload]) -> Iterator[Payload]:
    """The same payloads with neighbouring deltas of one step put together: `advance` over them gives the same turn."""
    for (kind, step), group in groupby(payloads, key=_speech):
        if kind == "text.delta":
            yield events.TextDelta(step=step, text="".join(delta.text for delta in group))  # type: ignore[attr-defined]
        elif kind == "reasoning.delta":
            yield events.ReasoningDelta(step=step, text="".join(delta.text for delta in group))  # type: ignore[attr-defined]
        else:
            yield from group


def _speech(payload: Payload) -> tuple[str, int]:
    if isinstance(payload, events.TextDelta | events.ReasoningDelta):
        return payload.type, payload.step
    return "", 0


def _text(turn: TurnState, payload: events.TextDelta) -> TurnState:
    return replace(turn, draft=_extend(turn.draft, payload.step, payload.text))


def _reasoning(turn: TurnState, payload: events.ReasoningDelta) -> TurnState:
    return replace(turn, reasoning=_extend(turn.reasoning, payload.step, payload.text))


def _extend(parts: tuple[Part, ...], step: int, text: str) -> tuple[Part, ...]:
    if parts and parts[-1].step == step:
        return (*parts[:-1], Part(step, parts[-1].text + text))
    return (*parts, Part(step, text))


def _rewound(turn: TurnState, payload: events.StepRewound) -> TurnState:
    return replace(
        turn,
        draft=tuple(part for part in turn.draft if part.step != payload.step),
        reasoning=tuple(part for part in turn.reasoning if part.step != payload.step),
    )


def _call(turn: TurnState, payload: events.ToolCall) -> TurnState:
    tool = ToolState(payload.call, payload.step, payload.name, payload.arguments, payload.effect)
    if any(known.call == tool.call for known in turn.tools):
        return turn
    return replace(turn, tools=(*turn.tools, tool))


def _progress(turn: TurnState, payload: events.ToolProgress) -> TurnState:
    return _running(turn, payload.call, message=payload.message, fraction=payload.fraction)


def _result(turn: TurnState, payload: events.ToolResult) -> TurnState:
    status = "ok" if payload.ok else "error"
    return _running(turn, payload.call, status=status, content=payload.content, error=payload.error)


def _running(turn: TurnState, call: str, **changes: Any) -> TurnState:
    """Changes a call that is not settled yet; a second result, or one for a call nobody made, changes nothing."""
    tools = (replace(t, **changes) if t.call == call and t.status == "running" else t for t in turn.tools)
    return replace(turn, tools=tuple(tools))


def _asked(turn: TurnState, payload: events.ApprovalRequested) -> TurnState:
    asked = Approval(payload.request, payload.call, payload.kind, payload.prompt, payload.expires_at)
    if any(known.request == asked.request for known in turn.approvals):
        return turn
    return replace(turn, approvals=(*turn.approvals, asked))


def _answered(turn: TurnState, payload: events.ApprovalResolved) -> TurnState:
    answer: dict[str, Any] = {"approved": payload.approved, "by": payload.by, "note": payload.note}
    approvals = (
        replace(a, **answer) if a.request == payload.request and a.approved is None else a for a in turn.approvals
    )
    return replace(turn, approvals=tuple(approvals))


def _required(turn: TurnState, payload: events.CredentialRequired) -> TurnState:
    if any(known.name == payload.name for known in turn.credentials):
        return turn
    required = RequiredCredential(payload.name, payload.reason, payload.expires_at)
    return replace(turn, credentials=(*turn.credentials, required))


def _required_no_more(turn: TurnState, payload: events.CredentialSupplied | events.CredentialWithdrawn) -> TurnState:
    return replace(turn, credentials=tuple(known for known in turn.credentials if known.name != payload.name))


def _completed(turn: TurnState, payload: events.TurnCompleted) -> TurnState:
    ended = _ended(turn, partial=None)
    return replace(ended, output=payload.text, usage=payload.usage, finish_reason=payload.finish_reason)


def _interrupted(turn: TurnState, payload: events.TurnInterrupted) -> TurnState:
    return _ended(turn, partial=turn.text)


def _failed(turn: TurnState, payload: events.TurnFailed) -> TurnState:
    return replace(_ended(turn, partial=turn.text), error=ErrorInfo(code=payload.code, message=payload.message))


def _ended(turn: TurnState, partial: str | None) -> TurnState:
    tools = tuple(replace(t, status="unsettled") if t.status == "running" else t for t in turn.tools)
    return replace(turn, draft=(), reasoning=(), approvals=(), credentials=(), partial=partial, tools=tools)


_HANDLERS: Final[dict[str, Callable[[TurnState, Any], TurnState]]] = {
    "text.delta": _text,
    "reasoning.delta": _reasoning,
    "step.rewound": _rewound,
    "tool.call": _call,
    "tool.progress": _progress,
    "tool.result": _result,
    "approval.requested": _asked,
    "approval.resolved": _answered,
    "credential.required": _required,
    "credential.supplied": _required_no_more,
    "credential.withdrawn": _required_no_more,
    "turn.completed": _completed,
    "turn.interrupted": _interrupted,
    "turn.failed": _failed,
}
