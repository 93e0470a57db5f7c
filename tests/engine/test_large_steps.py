"""Results, arguments and words of any size: what goes into one Commit fits it, or is refused before anything is
written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from pydantic import JsonValue

from engine.rig import Instance, Rig, types
from engine.test_reentry import Stop, lose, text_of
from legato import Turn, tool
from legato.agents import Call
from legato.engine.past import STEP_BYTES
from legato.journal.firestore import FirestoreJournal

LARGEST = "w" * (STEP_BYTES - 2)


@tool(effect="read")
async def look(text: str) -> int:
    return len(text)


async def largest() -> JsonValue:
    return LARGEST


def asking(*sizes: int) -> Call:
    return Call(look, "look", {"text": "w" * sum(sizes)})


@pytest.fixture(params=["sqlite", pytest.param("firestore", marks=pytest.mark.emulator)])
async def opened(rig: Rig, request: pytest.FixtureRequest) -> AsyncIterator[Instance]:
    """An instance of `both`, on either journal."""
    if request.param == "sqlite":
        yield rig.instance(both)
    else:
        emulator = request.getfixturevalue("emulator")
        project = request.getfixturevalue("firestore_project")
        yield rig.instance(both, journal=FirestoreJournal(project, "(default)", emulator=emulator))


async def both(turn: Turn) -> None:
    """Says half a segment of text, then takes the largest result a step may have and calls of every size with it."""
    turn.text("w" * 400_000)
    calls = [asking(size) for size in (700_000, 1_000_000, 100_000)]
    _, outcomes = await turn.exchange("ask", largest, lambda result: calls)
    await turn.text(" ".join(outcome.error.code if outcome.error else "ok" for outcome in outcomes))


async def test_the_largest_result_and_its_calls_are_stored_or_refused(opened: Instance) -> None:
    await opened.play()
    assert text_of(await opened.record())[400_000:] == "ok bad_arguments ok"


async def test_calls_refused_beside_a_large_result_are_refused_again(rig: Rig) -> None:
    stop = Stop()

    async def agent(turn: Turn) -> None:
        await both(turn)
        await stop()

    owner, other = rig.instance(agent), rig.instance(agent)
    await owner.start()
    await lose(owner, other, stop.reached)
    assert text_of(await other.ended())[400_000:] == "ok bad_arguments ok"


async def test_large_results_of_one_branch_after_the_other_are_committed_one_by_one(rig: Rig) -> None:
    async def agent(turn: Turn) -> None:
        for _ in range(2):
            await turn.exchange("ask", largest, lambda result: [])
        await turn.calls([asking(1_500_000)])

    assert types(await rig.instance(agent).play())[-1] == "turn.completed"


async def test_large_results_of_branches_side_by_side_are_committed_one_by_one(rig: Rig) -> None:
    async def agent(turn: Turn) -> None:
        turn.text("w")
        steps = (turn.step(name, largest) for name in ("a", "b", "c"))
        await asyncio.gather(turn.calls([asking(1_500_000)]), *steps)

    assert types(await rig.instance(agent).play())[-1] == "turn.completed"


async def test_large_results_whose_calls_are_made_side_by_side_are_committed_one_by_one(rig: Rig) -> None:
    async def agent(turn: Turn) -> None:
        await asyncio.gather(*(turn.exchange(name, largest, lambda result: [asking(9)]) for name in ("a", "b")))

    assert types(await rig.instance(agent).play())[-1] == "turn.completed"
