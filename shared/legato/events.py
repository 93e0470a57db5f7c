"""The vocabulary: what can happen in a turn, and the numbers by which it is found again.

Rules of this file:
- An event is immutable. It has an envelope (`seq`, `epoch`, `turn`, `at`) and one typed payload.
- Its wire form is one line of JSON that starts with the envelope and `type`, in this order. That line is stored,
  replayed and sent byte for byte; nothing ever encodes an event a second time.
- A payload of a type this version does not know parses to `Unknown`, so old readers live.
- No clock, no I/O, no framework.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    JsonValue,
    StringConstraints,
    Tag,
    TypeAdapter,
    WithJsonSchema,
)

ID_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
Id = Annotated[
    str,
    StringConstraints(pattern=rf"\A{ID_PATTERN}\z"),
    WithJsonSchema({"type": "string", "pattern": f"^{ID_PATTERN}$"}),
]
Effect = Literal["read", "idempotent", "once"]
Usage = dict[str, int]


class Payload(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    type: str

    def json_text(self) -> str:
        """The payload as one line of JSON; U+2028 and U+2029 are escaped, since some readers break lines there."""
        text = self.model_dump_json(exclude_none=True)
        if "\u2028" in text or "\u2029" in text:
            text = text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
        return text


def credential_request(name: str, expires_at: int) -> str:
    """What the answer to a `credential.required` goes by: one given to an earlier asking is none to this one."""
    return f"credential.{name}.{expires_at}"


class ErrorInfo(BaseModel):
    model_config = ConfigDict(frozen=True)

    code: str
    message: str


class TurnStarted(Payload):
    type: Literal["turn.started"] = "turn.started"
    input: JsonValue = None
    agent: str


class TurnResumed(Payload):
    type: Literal["turn.resumed"] = "turn.resumed"
    reason: str
    attempt: int


class TextDelta(Payload):
    type: Literal["text.delta"] = "text.delta"
    step: int
    text: str


class ReasoningDelta(Payload):
    type: Literal["reasoning.delta"] = "reasoning.delta"
    step: int
    text: str


class ToolCall(Payload):
    type: Literal["tool.call"] = "tool.call"
    step: int
    call: str
    name: str
    arguments: JsonValue = None
    effect: Effect


class ToolProgress(Payload):
    type: Literal["tool.progress"] = "tool.progress"
    call: str
    message: str | None = None
    fraction: float | None = None


class ToolResult(Payload):
    type: Literal["tool.result"] = "tool.result"
    call: str
    ok: bool
    content: JsonValue = None
    error: ErrorInfo | None = None


class ApprovalRequested(Payload):
    type: Literal["approval.requested"] = "approval.requested"
    request: str
    call: str
    kind: str
    prompt: str
    expires_at: int


class ApprovalResolved(Payload):
    type: Literal["approval.resolved"] = "approval.resolved"
    request: str
    approved: bool
    by: str
    note: str | None = None


class CredentialRequired(Payload):
    type: Literal["credential.required"] = "credential.required"
    name: str
    reason: str
    expires_at: int

    @property
    def request(self) -> str:
        return credential_request(self.name, self.expires_at)


class CredentialSupplied(Payload):
    type: Literal["credential.supplied"] = "credential.supplied"
    name: str


class CredentialWithdrawn(Payload):
    """It is asked for no more, though nobody has given it."""

    type: Literal["credential.withdrawn"] = "credential.withdrawn"
    name: str


class TurnSuspended(Payload):
    type: Literal["turn.suspended"] = "turn.suspended"
    reason: str


class StepRewound(Payload):
    type: Literal["step.rewound"] = "step.rewound"
    step: int


class TurnCompleted(Payload):
    type: Literal["turn.completed"] = "turn.completed"
    text: str
    usage: Usage = {}
    finish_reason: str = "stop"


class TurnInterrupted(Payload):
    type: Literal["turn.interrupted"] = "turn.interrupted"
    reason: str
    by: str


class TurnFailed(Payload):
    type: Literal["turn.failed"] = "turn.failed"
    code: str
    message: str
    retryable: bool = False


class Unknown(Payload):
    """A payload of a later version: kept as it came, never reduced."""

    model_config = ConfigDict(frozen=True, extra="allow")


KNOWN: Final[tuple[type[Payload], ...]] = (
    TurnStarted, TurnResumed, TextDelta, ReasoningDelta, ToolCall, ToolProgress, ToolResult, ApprovalRequested,
    ApprovalResolved, CredentialRequired, CredentialSupplied, CredentialWithdrawn, TurnSuspended, StepRewound,
    TurnCompleted, TurnInterrupted, TurnFailed,
)  # fmt: skip
_TYPES: Final = frozenset(kind.model_fields["type"].default for kind in KNOWN)

TERMINAL: Final = frozenset({"turn.completed", "turn.interrupted", "turn.failed"})
SHOWN_EARLY: Final = frozenset({"text.delta", "reasoning.delta", "tool.progress"})


def _tag(value: Any) -> str:
    kind = str(value.get("type") if isinstance(value, dict) else getattr(value, "type", None))
    return kind if kind in _TYPES else "unknown"


_PAYLOAD: TypeAdapter[Payload] = TypeAdapter(
    Annotated[
        Annotated[TurnStarted, Tag("turn.started")]
        | Annotated[TurnResumed, Tag("turn.resumed")]
        | Annotated[TextDelta, Tag("text.delta")]
        | Annotated[ReasoningDelta, Tag("reasoning.delta")]
        | Annotated[ToolCall, Tag("tool.call")]
        | Annotated[ToolProgress, Tag("tool.progress")]
        | Annotated[ToolResult, Tag("tool.result")]
        | Annotated[ApprovalRequested, Tag("approval.requested")]
        | Annotated[ApprovalResolved, Tag("approval.resolved")]
        | Annotated[CredentialRequired, Tag("credential.required")]
        | Annotated[CredentialSupplied, Tag("credential.supplied")]
        | Annotated[CredentialWithdrawn, Tag("credential.withdrawn")]
        | Annotated[TurnSuspended, Tag("turn.suspended")]
        | Annotated[StepRewound, Tag("step.rewound")]
        | Annotated[TurnCompleted, Tag("turn.completed")]
        | Annotated[TurnInterrupted, Tag("turn.interrupted")]
        | Annotated[TurnFailed, Tag("turn.failed")]
        | Annotated[Unknown, Tag("unknown")],
        Discriminator(_tag),
    ]
)


class Cursor(NamedTuple):
    """The last event a client has seen, written `"{epoch}-{seq}"`; opaque to clients, the `id` of an SSE frame."""

    epoch: int
    seq: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.seq}"

    @classmethod
    def parse(cls, text: str) -> Cursor | None:
        """None when `text` is no cursor: the reader is then sent a snapshot, never an error."""
        found = re.fullmatch(r"([0-9]{1,15})-([0-9]{1,15})", text, re.ASCII)
        return cls(int(found[1]), int(found[2])) if found else None


class Event(NamedTuple):
    """One numbered fact. `seq` is 1, 2, 3 ... within its session; `epoch` is its writer's lease's; `at` is in ms."""

    seq: int
    epoch: int
    turn: str
    at: int
    payload: Payload

    @property
    def type(self) -> str:
        return self.payload.type

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Event:
        """The event of a parsed line. Raises ValueError when a field of the envelope or of a known type is wrong."""
        payload = dict(fields)
        try:
            seq, epoch, turn, at = (payload.pop(name) for name in ("seq", "epoch", "turn", "at"))
        except KeyError as missing:
            raise ValueError(f"not an event: {missing} is missing") from None
        return cls(seq, epoch, turn, at, _PAYLOAD.validate_python(payload))

    def encode(self) -> Record:
        envelope = f'{{"seq":{self.seq},"epoch":{self.epoch},"turn":"{self.turn}","at":{self.at},'
        return Record(self.seq, self.epoch, self.turn, self.type, envelope + self.payload.json_text()[1:])


class Record(NamedTuple):
    """An event in its wire form: `data` is its line of JSON, the rest is read off the start of that line."""

    seq: int
    epoch: int
    turn: str
    type: str
    data: str

    @property
    def cursor(self) -> Cursor:
        return Cursor(self.epoch, self.seq)

    @classmethod
    def of(cls, data: str) -> Record:
        """Reads the envelope only. Raises ValueError when `data` is not an event's line."""
        found = _ENVELOPE.match(data)
        if not found:
            raise ValueError(f"not an event: {data[:80]!r}")
        seq, epoch, turn, kind = found.groups()
        return cls(int(seq), int(epoch), turn, kind, data)

    def fields(self) -> dict[str, Any]:
        """The whole line as a JSON object."""
        return _OBJECT.validate_json(self.data)

    def decode(self) -> Event:
        """Parses the whole line. Raises pydantic.ValidationError when a known type has a wrong payload."""
        return Event.of(self.fields())


_ENVELOPE: Final = re.compile(r'\{"seq":(\d+),"epoch":(\d+),"turn":"([\w-]+)","at":\d+,"type":"([\w.-]+)"', re.ASCII)
_OBJECT: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


def join(records: Iterable[Record]) -> str:
    """A JSON array with one event a line. JSON has no raw newline inside a value, so `split` finds every line again."""
    return "[\n" + ",\n".join(record.data for record in records) + "\n]"


def split(events: str) -> list[Record]:
    return [Record.of(line) for line in events[2:-2].split(",\n")]
