"""What comes and goes as JSON: the bodies that are taken, and the answers that are given."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, JsonValue, StringConstraints

from legato.events import Id
from legato.turn import TurnState


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class StartBody(_Strict):
    input: JsonValue
    turn: Id | None = None
    agent: Id | None = None
    if_active: Literal["reject", "interrupt"] = "reject"
    retry_of: Id | None = None


class CancelBody(_Strict):
    reason: Annotated[str, StringConstraints(min_length=1, max_length=500)] = "cancelled"


class DecisionBody(_Strict):
    approved: bool
    note: Annotated[str, StringConstraints(max_length=2000)] | None = None


class AuthBody(_Strict):
    stream: Id


class Accepted(BaseModel):
    session: str
    turn: str
    status: str


class Cancelled(BaseModel):
    session: str
    turn: str
    ended: bool


class Taken(BaseModel):
    session: str
    turn: str
    request: str
    approved: bool


class Snapshot(BaseModel):
    cursor: str
    session: str
    turns: list[TurnState]
    active: TurnState | None
    before: int | None


class Event(BaseModel):
    """The envelope of an event. What it carries beside depends on its `type`."""

    seq: int
    epoch: int
    turn: str
    at: int
    type: str


class News(BaseModel):
    events: list[Event]
    snapshot: Snapshot | None = None
    cursor: str
    more: bool


class ActiveTurn(BaseModel):
    id: str
    status: str


class Session(BaseModel):
    session: str
    turn: ActiveTurn | None
    created_at: int
    updated_at: int


class Sessions(BaseModel):
    sessions: list[Session]
    before: str | None


class Health(BaseModel):
    status: Literal["ok", "draining"]
    instance: str
    turns: int


class Document(BaseModel):
    openapi: str
