"""A turn is interrupted at each place where it can be: its client ends in what the journal has, nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

import pytest

from conftest import Place
from e2e.following import AGENTS, journaled, reduced
from harness import Server, TcpProxy, gemini_at
from legato.client import LegatoClient, Timing, Update
from legato.events import TERMINAL, Event, Record
from legato.sse import Message
from legato.turn import SessionState, TurnState, restore
from local_gemini import LocalGemini

LEASE = {"LEGATO_LEASE": "3"}
TOOL = '/tool transfer {"amount": 7}'
END = f"/say 4 40\n{TOOL}\n/say 4 40\n/sleep HOLD"


class Boundary(NamedTuple):
    """The place behind the first event of type `after` (with the text `word`), when `said` words have been said. The
    turn stays there for HOLD seconds. `tool`: what a cancel there makes of its tool. `known`: the journal has
    everything up to here."""

    script: str
    said: int
    after: str
    word: str = ""
    tool: str | None = None
    known: bool = False

    def is_behind(self, event: Event | None) -> bool:
        return event is not None and event.type == self.after and getattr(event.payload, "text", "") == self.word

    def is_behind_frame(self, message: Message) -> bool:
        return message.id is not None and self.is_behind(Record.of(message.data).decode())


BOUNDARIES = {
    "before-the-first-delta": Boundary(f"/sleep HOLD\n/say 4 40\n{TOOL}\n/say 4 40", 0, "turn.started"),
    "in-text": Boundary(f"/say 2 40\n/sleep HOLD\n/say 2 40\n{TOOL}\n/say 4 40", 2, "text.delta", "w2 "),
    "after-a-call": Boundary(
        '/say 4 40\n/tool transfer {"amount": 7, "seconds": 1}\n/sleep HOLD\n/say 4 40', 4, "tool.call", tool="ok"
    ),
    "during-a-call": Boundary(
        f'/say 4 40\n/tool slow {{"seconds": HOLD}}\n{TOOL}\n/say 4 40', 4, "tool.progress", tool="unsettled"
    ),
    "after-its-result": Boundary(f"/say 4 40\n{TOOL}\n/sleep HOLD\n/say 4 40", 4, "tool.result", tool="ok"),
    "after-the-last-delta": Boundary(END, 8, "text.delta", "w8 ", "ok"),
    "before-the-terminal-event": Boundary(END, 8, "text.delta", "w8 ", "ok", known=True),
    "before-a-failure": Boundary(f"{END}\n/fail broken", 8, "text.delta", "w8 ", "ok"),
    "before-the-model-breaks-off": Boundary(f"{END}\n/drop", 8, "text.delta", "w8 ", "ok"),
}
FAILURES = {
    "before-a-failure": {"scripted", "model_refused"},
    "before-the-model-breaks-off": {"model_broken_off"},
}


@pytest.fixture(params=["asgi"])
def face(request: pytest.FixtureRequest) -> str:
    """What a client makes of an interruption does not depend on the face."""
    return str(request.param)


@pytest.fixture(params=["scripted", "gemini", "adk"])
async def place(request: pytest.FixtureRequest, place: Place) -> AsyncIterator[Place]:
    """Nor does it depend on the model, or on whose agent it is."""
    if request.param == "scripted":
        yield place
        return
    async with LocalGemini() as gemini:
        yield place._replace(env={**AGENTS, "LEGATO_AGENT": f"{request.param}s:agent", **gemini_at(gemini.url)})


def words(number: int) -> str:
    return "".join(f"w{n} " for n in range(1, number + 1))


def honest(update: Update) -> None:
    """Whatever is shown holds the words in order, each once, and nothing else; only a completed turn has an output."""
    for turn in (*update.state.turns, *filter(None, [update.state.active])):
        text = turn.text or turn.output or turn.partial or ""
        assert words(8).startswith(text)
        assert (turn.output is not None) == (turn.status == "completed")
        assert (turn.partial is not None) == (turn.status in ("interrupted", "failed"))


async def lived(
    session: str, boundary: Boundary, first: Server, hold: float, interrupt: Callable[[TcpProxy], Awaitable[None]]
) -> SessionState:
    """What the client of a turn knows in the end, when `interrupt` came to its way to `first` at the boundary."""
    script, came = boundary.script.replace("HOLD", str(hold)), False
    async with (
        TcpProxy(first.port) as proxy,
        LegatoClient(proxy.url, "dev:ann", timing=Timing(first=0.2)) as client,
        client.turn(session, script, turn="t") as run,
    ):
        async for update in run:
            honest(update)
            if not came and boundary.is_behind(update.event):
                came = True
                await interrupt(proxy)
        assert came
        assert run.action is None
        return run.state


async def stored(server: Server, session: str) -> list[Record]:
    """The turn's events by the journal; exactly the last one is terminal."""
    async with server.caller().events(session, turn="t", **{"from": "start"}) as whole:
        records = [Record.of(data) for data in journaled(await whole.rest())]
    assert [record.type in TERMINAL for record in records] == [False] * (len(records) - 1) + [True]
    return records


async def agreed(server: Server, session: str, state: SessionState) -> TurnState:
    """The turn, as the client and the journal have it in the end."""
    snapshot = restore((await server.caller().snapshot(session)).json())
    assert snapshot.turns == state.turns
    assert snapshot.active is None
    assert state.active is None
    assert state.cursor == (await stored(server, session))[-1].cursor
    (turn,) = state.turns
    return turn


def transfers(place: Place, session: str) -> int:
    lines = place.ledger.read_text().splitlines() if place.ledger.exists() else []
    return sum(f'"{session}/t/' in line for line in lines)


def undisturbed(name: str, turn: TurnState) -> None:
    """The turn is what it is when nothing interrupts it."""
    if name in FAILURES:
        assert turn.error
        assert (turn.status, turn.partial) == ("failed", words(8))
        assert turn.error.code in FAILURES[name]
    else:
        assert (turn.status, turn.output) == ("completed", words(8))
    assert {tool.status for tool in turn.tools} == {"ok"}


async def reaches(server: Server, session: str, word: str) -> None:
    async with server.caller().events(session, turn="t", **{"from": "start"}) as follower:
        await follower.until(lambda message: f'"text":"{word}"' in message.data)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["resumed-there", "resumed-elsewhere"])
async def test_a_turn_that_is_cut_is_whole_when_resumed(
    pair: tuple[Server, Server], place: Place, elsewhere: bool
) -> None:
    async def cut(name: str) -> None:
        boundary = BOUNDARIES[name]

        async def interrupt(proxy: TcpProxy) -> None:
            if boundary.known:
                await reaches(pair[1], name, boundary.word)
            proxy.upstream = pair[elsewhere].port
            proxy.cut()

        undisturbed(name, await agreed(pair[1], name, await lived(name, boundary, pair[0], 1, interrupt)))
        assert transfers(place, name) == 1

    await asyncio.gather(*map(cut, BOUNDARIES))


async def test_a_turn_that_is_cancelled_keeps_what_it_said_as_partial(
    pair: tuple[Server, Server], place: Place
) -> None:
    """A tool that runs `once` is let finish, and recorded; another is torn down."""

    async def cancelled(name: str) -> None:
        boundary = BOUNDARIES[name]

        async def interrupt(_: TcpProxy) -> None:
            assert (await pair[0].caller().cancel(name, "t", "enough")).status_code == 202

        turn = await agreed(pair[1], name, await lived(name, boundary, pair[0], 60, interrupt))
        assert (turn.status, turn.partial) == ("interrupted", words(boundary.said))
        assert [tool.status for tool in turn.tools] == [boundary.tool] * bool(boundary.tool)
        assert transfers(place, name) == sum(tool.name == "transfer" for tool in turn.tools)

    await asyncio.gather(*map(cancelled, BOUNDARIES))


async def test_a_turn_whose_owner_is_killed_is_whole_when_another_goes_on_with_it(place: Place) -> None:
    """As if nothing had happened: the same text, the same end, each tool settled, the transfer made once."""
    async with place.server("a", **LEASE) as owner, place.server("b", **LEASE) as other:
        everywhere = asyncio.Barrier(len(BOUNDARIES) + 1)

        async def killed(name: str) -> None:
            boundary = BOUNDARIES[name]

            async def interrupt(proxy: TcpProxy) -> None:
                if boundary.known:
                    await reaches(other, name, boundary.word)
                proxy.upstream = other.port
                await everywhere.wait()

            turn = await agreed(other, name, await lived(name, boundary, owner, 5, interrupt))
            undisturbed(name, turn)
            assert transfers(place, name) == 1

        async with asyncio.TaskGroup() as clients:
            for name in BOUNDARIES:
                clients.create_task(killed(name))
            await everywhere.wait()
            owner.kill9()


async def test_an_event_that_comes_again_changes_nothing(pair: tuple[Server, Server]) -> None:
    """Not when a resume repeats the last one, and not when every one comes twice."""

    async def repeated(name: str) -> None:
        boundary = BOUNDARIES[name]
        async with pair[0].caller().start(name, boundary.script.replace("HOLD", "0.5"), "t") as first:
            seen = list(await first.until(boundary.is_behind_frame))
        before = {"after": str(seen[-2].id)} if len(seen) > 1 else {"from": "start"}
        async with pair[1].caller().events(name, turn="t", **before) as second:
            rest = await second.rest()
        assert rest[0].data == seen[-1].data
        state = reduced(name, [*seen, *rest])
        twice = [message for message in [*seen[:-1], *rest] for _ in range(2)]
        assert reduced(name, twice) == state
        await agreed(pair[1], name, state)

    await asyncio.gather(*map(repeated, BOUNDARIES))
