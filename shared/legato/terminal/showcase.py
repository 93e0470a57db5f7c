"""`legato demo`: a turn is cut in mid-sentence and goes on from another process; then the figures are checked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
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
SCRIPT: Final = '/say 20 20\n/tool transfer {"amount": 20}\n/say 20 20'
WORDS: Final = "".join(f"w{number} " for number in range(1, 41))
CUT_AFTER: Final = 12
AWAY_SECONDS: Final = 0.8
SILENCE_SECONDS: Final = 10.0

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


async def showcase(url: str, ledger: Path, screen: Screen) -> None:
    """Runs against the gateway at `url`, whose `transfer` writes to `ledger`. Raises DemoFailed, httpx.HTTPError."""
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
    async with _client(url) as http:
        headers = {"Last-Event-ID": first.cursor}
        rest = await watcher.read(http.stream("GET", f"{path}/events", params={"turn": TURN}, headers=headers))
    entries = _lines(ledger)
    check(watcher.state, first, rest, entries)
    _sum_up(screen, first, rest, entries[0])


def check(state: SessionState, first: Passage, rest: Passage, entries: Sequence[str]) -> None:
    """Raises DemoFailed unless both passages are the whole turn, from two instances, and the transfer ran once."""
    numbers = [record.seq for record in first.records + rest.records]
    ended = state.find(TURN)
    if numbers != list(range(1, len(numbers) + 1)):
        raise DemoFailed(f"events are missing or came twice: {numbers}")
    if ended is None or ended.status != "completed" or ended.output != WORDS:
        raise DemoFailed(f"the turn is not whole: {ended}")
    if first.instance == rest.instance:
        raise DemoFailed(f"both connections were answered by {first.instance}")
    if len(entries) != 1:
        raise DemoFailed(f"transfer ran {len(entries)} times: {list(entries)}")


def _lines(ledger: Path) -> list[str]:
    return ledger.read_text().splitlines() if ledger.exists() else []


def _sum_up(screen: Screen, first: Passage, rest: Passage, entry: str) -> None:
    before, after = len(first.records), len(rest.records)
    screen.line(f"\nBefore the cut: {before} events, 1 to {before}, from {first.instance}")
    screen.line(f"After it:       {after} events, {before + 1} to {before + after}, from {rest.instance}")
    screen.line("None is missing, none came twice, the text is whole.")
    screen.line(f"transfer ran once, its ledger has one line: {json.dumps(json.loads(entry))}")


class Watcher:
    """Reads one connection after the other into one state, and shows what comes."""

    def __init__(self, screen: Screen) -> None:
        self.state = SessionState(SESSION)
        self._screen = screen

    async def read(self, answering: Answering, words: int | None = None) -> Passage:
        """Reads to the turn's end, or until `words` words have come: then the connection is dropped."""
        async with answering as response:
            if response.status_code != 200:
                raise DemoFailed(f"HTTP {response.status_code}: {(await response.aread()).decode()}")
            passage = Passage(response.headers["Legato-Instance"])
            self._screen.line(f"● {passage.instance} answers", "dim")
            async with aclosing(_records(response)) as records:
                async for record in records:
                    self._take(record, passage)
                    if record.type in TERMINAL or _said(passage) == words:
                        return passage
        raise DemoFailed(f"the stream ended after event {passage.cursor}, before the turn did")

    def _take(self, record: Record, passage: Passage) -> None:
        passage.records.append(record)
        self.state = reduce(self.state, record.decode())
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
