"""What comes and goes as JSON: the bodies that are taken, and the answers that are given."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, SecretStr, StringConstraints

from legato.events import Id
from legato.turn import TurnState

CREDENTIAL_BYTES: Final = 16 * 1024


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


def _bounded(value: SecretStr) -> SecretStr:
    if len(value.get_secret_value().encode()) > CREDENTIAL_BYTES:
        raise ValueError(f"expected at most {CREDENTIAL_BYTES} bytes of UTF-8")
    return value


class SupplyBody(_Strict):
    value: Annotated[SecretStr, Field(min_length=1, max_length=CREDENTIAL_BYTES), AfterValidator(_bounded)]
    expires_in: Annotated[float, Field(gt=0, le=30 * 86400)] | None = None


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


class Supplied(BaseModel):
    session: str
    turn: str
    name: str


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
