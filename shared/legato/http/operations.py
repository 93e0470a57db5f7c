"""What each request takes and is answered with: see `openapi.Operation`."""

from __future__ import annotations

from typing import Final

from legato.errors import (
    AlreadyDecided,
    CredentialsNotKept,
    InputTooLarge,
    NotFound,
    SessionBusy,
    TooManyTurns,
    TurnConflict,
    TurnGone,
    TurnsTooFast,
)
from legato.events import ID_PATTERN
from legato.http.bodies import (
    Accepted,
    AuthBody,
    CancelBody,
    Cancelled,
    DecisionBody,
    Document,
    Health,
    News,
    Sessions,
    Snapshot,
    StartBody,
    Supplied,
    SupplyBody,
    Taken,
)
from legato.http.openapi import ID, Operation

LONGEST_WAIT: Final = 60
NEWEST: Final = 10**16 - 1
MOST_SESSIONS: Final = 100
_PLACE: Final = {"type": "string", "pattern": f"^[0-9]{{1,16}}-{ID_PATTERN}$"}
_LAST_EVENT_ID: Final = {"Last-Event-ID": {"type": "string"}}

START: Final = Operation(
    "Starts a turn, or finds the one of that id",
    {202: Accepted},
    stream=200,
    streams_first=True,
    headers={"Idempotency-Key": ID},
    body=StartBody,
    raises=(TurnConflict, SessionBusy, InputTooLarge, TooManyTurns, TurnsTooFast),
)
FOLLOW: Final = Operation(
    "Follows what happens, as a stream or by long poll",
    {200: News, 204: None},
    stream=200,
    streams_first=True,
    query={
        "after": {"type": "string"},
        "from": {"const": "start"},
        "turn": ID,
        "wait": {"type": "number", "minimum": 0, "maximum": LONGEST_WAIT},
    },
    headers=_LAST_EVENT_ID,
    raises=(NotFound, TurnGone),
)
CANCEL: Final = Operation(
    "Asks a turn to stop; 200 where it had ended",
    {200: Cancelled, 202: Cancelled},
    body=CancelBody,
    body_optional=True,
)
DECIDE: Final = Operation(
    "Answers a question of a turn; 200 where that was the answer already",
    {200: Taken, 202: Taken},
    stream=200,
    headers=_LAST_EVENT_ID,
    body=DecisionBody,
    raises=(NotFound, TurnGone, AlreadyDecided),
)
SUPPLY: Final = Operation(
    "Gives a turn the credential that it waits for; 200 where that value had been taken up",
    {200: Supplied, 202: Supplied},
    stream=200,
    headers=_LAST_EVENT_ID,
    body=SupplyBody,
    raises=(NotFound, TurnGone, AlreadyDecided, CredentialsNotKept),
)
PROLONG: Final = Operation(
    "Lets an open stream be read for as long as the token lasts that comes with this",
    {204: None},
    body=AuthBody,
    raises=(NotFound,),
)
LOOK: Final = Operation(
    "The session with its newest turns, or those before one",
    {200: Snapshot, 304: None},
    query={"before": {"type": "integer", "minimum": 1, "maximum": NEWEST}},
    headers={"If-None-Match": {"type": "string"}},
    raises=(NotFound,),
)
DELETE: Final = Operation("Stops what runs and deletes everything", {204: None}, raises=(NotFound,))
LIST: Final = Operation(
    "The caller's sessions, newest first",
    {200: Sessions},
    query={
        "before": _PLACE,
        "limit": {"type": "integer", "minimum": 1, "maximum": MOST_SESSIONS},
    },
)
HEALTH: Final = Operation("Says that turns are taken", {200: Health, 503: Health})
DESCRIBE: Final = Operation("This document", {200: Document})
