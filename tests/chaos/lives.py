"""One turn as its client lives through it, what is known of it afterwards, and the rules that hold of it."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from e2e.following import journaled
from harness import Caller
from legato.client import LegatoClient, Timing
from legato.events import Event, Record, ToolResult
from legato.turn import SessionState, restore

TURN = "t"
SCRIPT = "\n".join(
    [
        "/say 12 40",
        '/tool lookup {"key": "k"}',
        "/say 6 40",
        '/tool slow {"seconds": 0.3}',
        "/say 6 40",
        '/tool transfer {"amount": 1, "seconds": 0.05}',
        "/say 6 40",
        '/parallel transfer {"amount": 2, "seconds": 0.05} lookup {"key": "p"}',
        "/say 12 40",
    ]
)
SCRIPT_SECONDS = 1.7
"""A turn of the script is at work for longer than this."""
TIMING = Timing(silence=2.5, first=0.1, most=0.5, give_up=60)
NO_TLS = ssl.create_default_context()
PATIENCE = 90.0


class Lived(NamedTuple):
    """What a client has of a turn at its end; `pause` is the longest that it waited for an event, in s."""

    session: str
    state: SessionState
    pause: float


class Life(NamedTuple):
    """The same, and what else is known of the turn. `paid` are the ledger's keys of it, `entered` the keys of calls
    that entered a tool, `asked` what each request to the model held; its session is called `-` in all of them."""

    session: str
    state: SessionState
    pause: float
    fresh: SessionState
    stored: list[Event]
    paid: list[str]
    entered: list[str]
    asked: list[str]

    @property
    def output(self) -> str | None:
        turn = self.fresh.find(TURN)
        return turn.output if turn and turn.status == "completed" else None

    @property
    def takeovers(self) -> int:
        return sum(event.payload.type == "turn.resumed" for event in self.stored)

    @property
    def words_lost(self) -> int:
        """Of its own answer, by what its client shows: the script's words are all different."""
        shown = self.state.find(TURN)
        return len(set((self.output or "").split()) - set(((shown.output if shown else None) or "").split()))


Rule = Callable[[Life, Life], bool]
RULES: Mapping[str, Rule] = {
    "the turn completes with the text of an undisturbed one": lambda life, calm: life.output == calm.output,
    "the ledger has each key once": lambda life, calm: sorted(life.paid) == sorted(calm.paid),
    "each result is in the journal once": lambda life, calm: _settled(life) == _settled(calm),
    "the client's state is that of a fresh snapshot": lambda life, calm: life.state == life.fresh,
    "the model sees each result once": lambda life, calm: set(life.asked) == set(calm.asked),
    "the events are numbered without a hole": lambda life, calm: (
        [event.seq for event in life.stored] == list(range(1, len(life.stored) + 1))
    ),
}
"""What holds of a life, given an undisturbed one."""


def broken(lives: Iterable[Life], calm: Life) -> dict[str, list[str]]:
    """The rules that do not hold, each with the sessions it does not hold in."""
    found = {rule: [life.session for life in lives if not holds(life, calm)] for rule, holds in RULES.items()}
    return {rule: sessions for rule, sessions in found.items() if sessions}


@dataclass(frozen=True, slots=True)
class Scene:
    """Where turns are lived: the address of all instances, and the files that their tools and models write."""

    url: str
    ledger: Path
    witness: Path

    async def live(self, session: str) -> Lived:
        """Starts a turn and follows it to its end. Raises TimeoutError."""
        clock = asyncio.get_running_loop().time
        longest, last = 0.0, clock()
        async with (
            asyncio.timeout(PATIENCE),
            httpx.AsyncClient(trust_env=False, verify=NO_TLS) as http,
            LegatoClient(self.url, "dev:ann", http=http, timing=TIMING) as client,
            client.turn(session, SCRIPT, turn=TURN) as run,
        ):
            async for update in run:
                if update.event:
                    longest, last = max(longest, clock() - last), clock()
        return Lived(session, run.state, longest)

    async def told(self, lived: Lived) -> Life:
        """What is known of the turn now; asked of a service that nothing befalls any more."""
        caller, name = Caller(self.url), f"{lived.session}/{TURN}"
        fresh = restore((await caller.snapshot(lived.session)).json())
        async with caller.events(lived.session, turn=TURN, **{"from": "start"}) as answer:
            stored = [Record.of(data).decode() for data in journaled(await answer.rest(PATIENCE))]
        paid = [line["key"] for line in _lines(self.ledger) if line["key"].startswith(f"{name}/")]
        seen = [line for line in _lines(self.witness) if line["turn"] == name]
        asked = [json.dumps(line["asked"]) for line in seen if "asked" in line]
        entered = [line["entered"] for line in seen if "entered" in line]
        alike = [[text.replace(lived.session, "-") for text in texts] for texts in (paid, entered, asked)]
        return Life(*lived, fresh, stored, *alike)


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _settled(life: Life) -> Counter[str]:
    return Counter(event.payload.call for event in life.stored if isinstance(event.payload, ToolResult))
