"""The snapshot of a session is one that it had, whatever happens while it is read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.rig import KEY, PATIENCE, Puppet, Rig
from legato.agents import Turn
from legato.engine.view import view


async def saying(turn: Turn) -> None:
    await turn.text("said")


def at_first(instead: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    """`method`, whose first answer is `instead`."""
    answers = iter([instead])

    async def asked(*args: Any) -> Any:
        given = await method(*args)
        return next(answers, given)

    return asked


async def test_a_snapshot_never_passes_the_start_of_a_turn_that_it_does_not_show(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has read the documents just before the turn began, and the newest position just after."""
    instance = rig.instance(saying)
    await instance.play()
    journal, records = instance.journal, await instance.journal.turns(KEY, None, 21)
    before = await journal.standing(KEY)
    await rig.instance(Puppet()).start(turn="t2")
    torn = replace(before, last=(await journal.standing(KEY)).last)
    monkeypatch.setattr(journal, "standing", at_first(torn, journal.standing))
    monkeypatch.setattr(journal, "turns", at_first(records, journal.turns))
    seen = await view(instance.runtime, KEY)
    assert seen
    assert seen.state.active
    assert seen.state.active.turn == "t2"


async def test_a_session_whose_newest_turn_has_expired_still_has_a_snapshot(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TTL policy deletes in no order."""
    instance = rig.instance(saying)
    await instance.play()
    await instance.play(turn="t2")
    older = (await instance.journal.turns(KEY, None, 21))[:1]
    monkeypatch.setattr(instance.journal, "turns", lambda *_: asyncio.sleep(0, older))
    seen = await asyncio.wait_for(view(instance.runtime, KEY), PATIENCE)
    assert seen
    assert [turn.turn for turn in seen.state.turns] == ["t1"]
