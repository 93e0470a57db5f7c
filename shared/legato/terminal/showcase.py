"""`legato demo`: a turn is cut in mid-sentence, its owner is killed while a tool runs, and a person is asked.

It stays one turn; the figures are checked.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx

from legato import sse
from legato.errors import LegatoError
from legato.events import TERMINAL, Record
from legato.terminal.screen import Screen
from legato.turn import SessionState, reduce

SESSION: Final = "demo"
TURN: Final = "t_1"
TOKEN: Final = "dev:me"  # noqa: S105 - the laptop's identity, refused where K_SERVICE is set
SCRIPT: Final = (
    '/say 20 20\n/tool transfer {"amount": 20, "seconds": 1.5}\n/say 10 20\n/tool wire {"amount": 5}\n/say 10 20'
)
WORDS: Final = "".join(f"w{number} " for number in range(1, 41))
CUT_AFTER: Final = 12
AWAY_SECONDS: Final = 0.8
STRIKE_SECONDS: Final = 0.5
"""How long the transfer runs before its owner is killed."""
RESTS: Final = TERMINAL | {"turn.suspended"}
SILENCE_SECONDS: Final = 10.0

Kill = Callable[[str], int]
"""Sends SIGKILL to the instance of this name and gives its pid."""
Answering = AbstractAsyncContextManager[httpx.Response]


class DemoFailed(LegatoError):
    """What Legato promises did not hold; the message says what was seen instead."""

    code = "demo_failed"


@dataclass(slots=True)
class Passage:
    """What one connection brought, and from which instance."""

    instance: str
    records: list[Record] = field(default_factory=list)

    @property
    def cursor(self) -> str:
        return str(self.records[-1].cursor)


async def showcase(url: str, ledger: Path, kill: Kill, lease: float, screen: Screen) -> None:
    """Runs against the gateway at `url`, whose `transfer` and `wire` write to `ledger` and whose owners hold their
    sessions for `lease` seconds. Raises DemoFailed, httpx.HTTPError."""
    path = f"/v1/sessions/{SESSION}"
    watcher = Watcher(screen)
    async with _client(url) as http:
        body = {"turn": TURN, "input": SCRIPT}
        first = await watcher.read(http.stream("POST", f"{path}/turns", json=body), words=CUT_AFTER)
    screen.line(
        f"✂ the connection is cut after event {first.records[-1].seq}; nobody listens for {AWAY_SECONDS:g} s", "yellow"
    )
    await asyncio.sleep(AWAY_SECONDS)
    screen.line(f"↻ GET {path}/events?turn={TURN} with Last-Event-ID: {first.cursor}", "yellow")

    async def strike() -> None:
        await asyncio.sleep(STRIKE_SECONDS)
        pid = kill(first.instance)
        screen.line(f"✗ kill -9 {pid}: {first.instance}, which owns the turn, is gone while transfer runs", "red")
        screen.line(f"  Its lease ends within {lease:g} s; 5 s later its transfer cannot run any more, and is settled.")

    async with _client(url) as http:
        follow = http.stream("GET", f"{path}/events", params={"turn": TURN}, headers=_behind(first))
        second = await watcher.read(follow, at_call=strike)
    asked = watcher.question()
    screen.line(f'✓ POST {path}/turns/{TURN}/approvals/{asked} {{"approved": true}}', "yellow")
    async with _client(url) as http:
        decide = http.stream(
            "POST", f"{path}/turns/{TURN}/approvals/{asked}", json={"approved": True}, headers=_behind(second)
        )
        third = await watcher.read(decide)
    passages, entries = [first, second, third], _lines(ledger)
    check(watcher.state, passages, entries)
    _sum_up(screen, passages, entries)


def check(state: SessionState, passages: Sequence[Passage], entries: Sequence[str]) -> None:
    """Raises DemoFailed unless the passages are the whole turn, from two instances and over the loss of its owner, and
    each tool ran once."""
    records = [record for passage in passages for record in passage.records]
    numbers = [record.seq for record in records]
    ended = state.find(TURN)
    if numbers != list(range(1, len(numbers) + 1)):
        raise DemoFailed(f"events are missing or came twice: {numbers}")
    if ended is None or ended.status != "completed" or ended.output != WORDS:
        raise DemoFailed(f"the turn is not whole: {ended}")
    if passages[0].instance == passages[1].instance:
        raise DemoFailed(f"both connections were answered by {passages[0].instance}")
    if "turn.resumed" not in {record.type for record in passages[1].records}:
        raise DemoFailed("the owner was not lost")
    if [json.loads(entry)["amount"] for entry in entries] != [20, 5]:
        raise DemoFailed(f"transfer and wire did not run once each: {list(entries)}")


def _lines(ledger: Path) -> list[str]:
    return ledger.read_text().splitlines() if ledger.exists() else []


def _sum_up(screen: Screen, passages: Sequence[Passage], entries: Sequence[str]) -> None:
    screen.line("")
    for name, passage in zip(("Before the cut:", "After it:", "After the answer:"), passages, strict=True):
        first, last = passage.records[0].seq, passage.records[-1].seq
        screen.line(f"{name:17} {len(passage.records)} events, {first} to {last}, from {passage.instance}")
    screen.line("None is missing, none came twice, the text is whole.")
    screen.line(f"transfer ran once and wire ran once, the ledger has {len(entries)} lines:")
    for entry in entries:
        screen.line(json.dumps(json.loads(entry)))


def _behind(passage: Passage) -> dict[str, str]:
    return {"Last-Event-ID": passage.cursor}


class Watcher:
    """Reads one connection after the other into one state, and shows what comes."""

    def __init__(self, screen: Screen) -> None:
        self.state = SessionState(SESSION)
        self._screen = screen

    async def read(
        self, answering: Answering, words: int | None = None, at_call: Callable[[], Awaitable[None]] | None = None
    ) -> Passage:
        """Reads until the turn ends or waits, or until `words` words have come: then the connection is dropped.

        `at_call` is done when the first tool is called, while the connection stays.
        """
        async with answering as response:
            if response.status_code != 200:
                raise DemoFailed(f"HTTP {response.status_code}: {(await response.aread()).decode()}")
            passage = Passage(response.headers["Legato-Instance"])
            self._screen.line(f"● {passage.instance} answers", "dim")
            async with aclosing(_records(response)) as records:
                async for record in records:
                    self._take(record, passage)
                    if record.type in RESTS or _said(passage) == words:
                        return passage
                    if record.type == "tool.call" and at_call:
                        await at_call()
                        at_call = None
        raise DemoFailed(f"the stream ended after event {passage.cursor}, before the turn did")

    def question(self) -> str:
        """The one that the turn waits with. Raises DemoFailed."""
        turn = self.state.active
        if turn is None or turn.status != "waiting" or len(turn.questions) != 1:
            raise DemoFailed(f"the turn does not wait for an answer: {turn}")
        return turn.questions[0].request

    def _take(self, record: Record, passage: Passage) -> None:
        passage.records.append(record)
        event = record.decode()
        self._screen.resumed(event.payload)
        self.state = reduce(self.state, event)
        turn = self.state.find(TURN)
        if turn:
            if record.type == "turn.started":
                self._screen.asked(turn)
            self._screen.show(turn)


def _said(passage: Passage) -> int:
    return sum(record.type == "text.delta" for record in passage.records)


async def _records(response: httpx.Response) -> AsyncGenerator[Record, None]:
    decoder = sse.Decoder()
    async for chunk in response.aiter_raw():
        for message in decoder.feed(chunk):
            if message.event == "snapshot":
                raise DemoFailed(f"a snapshot came in place of the events after {decoder.last_id}")
            if message.id is not None:
                yield Record.of(message.data)


def _client(url: str) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {TOKEN}", "Accept": sse.MEDIA_TYPE}
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=SILENCE_SECONDS, trust_env=False)
