"""A canonical turn in all its pieces, and a client that plays it against a scripted server."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import reduce as fold
from typing import Any

import httpx

from legato import events, sse
from legato.client import LegatoClient, Run, Timing, Update
from legato.events import Event, Payload, Record
from legato.turn import SessionState, reduce, snapshot
from scripted_server import Answer, ScriptedServer, json_answer

PAYLOADS: list[Payload] = [
    events.TurnStarted(input="hi", agent="demo"),
    events.TextDelta(step=1, text="w1 "),
    events.TextDelta(step=1, text="w2 \u2028\U0001f600 "),
    events.ToolCall(step=1, call="1-1", name="lookup", arguments={"key": "a"}, effect="read"),
    events.ToolResult(call="1-1", ok=True, content="data: x\n\nid: 9-9"),
    events.TextDelta(step=2, text="w3"),
    events.TurnCompleted(text="w1 w2 w3"),
]


def log(payloads: list[Payload], first: int = 1, turn: str = "t_1", epoch: int = 1) -> list[Record]:
    return [Event(first + at, epoch, turn, 5, payload).encode() for at, payload in enumerate(payloads)]


def state_of(records: list[Record]) -> SessionState:
    return fold(reduce, [record.decode() for record in records], SessionState("s_1"))


def frames(records: list[Record]) -> bytes:
    return sse.OPENING + b"".join(map(sse.frame, records))


def closing(reason: str, **more: Any) -> bytes:
    return sse.control("stream.closing", {"reason": reason, **more})


def looked(records: list[Record]) -> Answer:
    return json_answer(snapshot(state_of(records)))


TURN = log(PAYLOADS)
FINAL = state_of(TURN)
WHOLE = frames(TURN)
WAITING = log([*PAYLOADS[:4], events.TurnSuspended(reason="approval")])
ASKED = log(
    [
        *PAYLOADS[:3],
        events.ToolCall(step=1, call="1-1", name="wire", arguments={"amount": 5}, effect="once"),
        events.ApprovalRequested(request="1-1-1", call="1-1", kind="approval", prompt="Wire 5?", expires_at=99),
        events.TurnSuspended(reason="approval"),
    ]
)
REQUIRED = log(
    [
        *PAYLOADS[:3],
        events.ToolCall(step=1, call="1-1", name="mail", arguments={"to": "bob"}, effect="once"),
        events.CredentialRequired(name="mail", reason="mail needs it", expires_at=99),
        events.TurnSuspended(reason="credential"),
    ]
)
SUPPLIED = log(
    [
        events.TurnResumed(reason="decision", attempt=0),
        events.CredentialSupplied(name="mail"),
        events.ToolResult(call="1-1", ok=True, content="sent"),
        events.TurnCompleted(text="w1 w2"),
    ],
    first=7,
    epoch=2,
)
GOES_ON = log(
    [
        events.TurnResumed(reason="decision", attempt=0),
        events.ApprovalResolved(request="1-1-1", approved=True, by="ann"),
        events.ToolResult(call="1-1", ok=True, content="sent"),
        events.TurnCompleted(text="w1 w2"),
    ],
    first=7,
    epoch=2,
)


class Clockwork:
    """Time that passes only in sleeps, which are written down."""

    def __init__(self) -> None:
        self.now, self.slept = 0.0, list[float]()

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        if seconds:
            self.slept.append(seconds)
        await asyncio.sleep(0)


TLS = ssl.create_default_context()
"""Loading the certificates anew for every client would take longer than the tests."""


@asynccontextmanager
async def client_of(
    server: ScriptedServer, time: Clockwork | None = None, **options: Any
) -> AsyncIterator[LegatoClient]:
    time = time or Clockwork()
    defaults: dict[str, Any] = {"token": "dev:ann", "timing": Timing(silence=5.0), "chance": lambda: 1.0}
    async with httpx.AsyncClient(verify=TLS) as http:
        yield LegatoClient(server.url, http=http, clock=lambda: time.now, sleep=time.sleep, **(defaults | options))


async def live(run: Run) -> list[Update]:
    async with run:
        return [update async for update in run]


async def play(server: ScriptedServer, time: Clockwork | None = None, **options: Any) -> tuple[Run, list[Update]]:
    async with client_of(server, time, **options) as client:
        run = client.turn("s_1", "hi", turn="t_1")
        return run, await live(run)


def seqs(updates: list[Update]) -> list[int]:
    return [update.event.seq for update in updates if update.event]


def statuses(updates: list[Update]) -> list[str]:
    shown = [update.status for update in updates]
    return [status for at, status in enumerate(shown) if at == 0 or shown[at - 1] != status]
