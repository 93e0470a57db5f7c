"""A turn ends whatever its agent's last words are: no error, reason or count keeps the terminal event out."""

from __future__ import annotations

import json

import pytest

from engine.rig import Rig
from legato import ToolFailed, Turn
from legato.errors import ModelFailed, Refused


@pytest.mark.parametrize(
    ("failure", "code", "message"),
    [
        (ModelFailed("overloaded", "half \ud83d"), "overloaded", "half \ufffd"),
        (Refused("no\ud83d", "no"), "no\ufffd", "no"),
        (ToolFailed("no_funds", "x" * 5_000_000), "no_funds", "x" * 1999 + "…"),
        (ValueError("\ud83d"), "agent_error", "the agent raised ValueError"),
        (SystemExit(2), "agent_error", "the agent raised RuntimeError"),
    ],
)
async def test_every_error_ends_the_turn(rig: Rig, failure: BaseException, code: str, message: str) -> None:
    async def agent(turn: Turn) -> None:
        raise failure

    last = json.loads((await rig.instance(agent).play())[-1].data)
    assert (last["type"], last["code"], last["message"]) == ("turn.failed", code, message)


async def test_a_failed_step_that_nobody_catches_ends_the_turn_as_its_error_would(rig: Rig) -> None:
    async def work() -> None:
        raise ValueError("not for everybody's eyes")

    async def agent(turn: Turn) -> None:
        await turn.step("work", work)

    last = json.loads((await rig.instance(agent).play())[-1].data)
    assert (last["code"], last["message"]) == ("agent_error", "the agent raised ValueError")


async def test_every_reason_ends_the_turn(rig: Rig) -> None:
    async def agent(turn: Turn) -> None:
        turn.finish({"in\ud83d": 1}, "stop\ud83d")

    last = json.loads((await rig.instance(agent).play())[-1].data)
    assert (last["type"], last["usage"], last["finish_reason"]) == ("turn.completed", {"in\ufffd": 1}, "stop\ufffd")


async def test_a_usage_that_no_store_can_hold_does_not_cost_the_answer(rig: Rig) -> None:
    async def agent(turn: Turn) -> None:
        await turn.text("answer")
        turn.finish({"in": 3, "": 1, "__x__": 1, "out": 2**63, "ü" * 751: 1, "a.b": 2**63 - 1}, "stop")

    instance = rig.instance(agent)
    await instance.play()
    record = await instance.record()
    assert (record.output, record.usage) == ("answer", {"in": 3, "a.b": 2**63 - 1})
