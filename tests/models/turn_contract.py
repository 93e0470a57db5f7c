"""What every adapter must hold in a turn, whether it brings a model or a whole agent.

Its own test file supplies `make`, which makes an agent whose model follows the scripts of `models.scripted` and which
has the tools `lookup(key)`, a `read`, and `transfer(amount)`, a `once`; and `paid`, the amounts transferred so far.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.rig import KEY, Rig, ends, types, unbroken
from engine.test_reentry import PLENTY

Make = Callable[[], Any]
BOTH = '/think 2\n/say 2\n/parallel lookup {"key": "a"} transfer {"amount": 3}\n/say 2'


def words(number: int) -> str:
    return "".join(f"w{n} " for n in range(1, number + 1))


class TurnContract:
    async def test_text_is_shown_as_it_comes_apart_from_thoughts_and_once(self, rig: Rig, make: Make) -> None:
        instance = rig.instance(make())
        records = await instance.play("/think 2\n/say 5")
        deltas = [kind for kind in types(records) if kind.endswith(".delta")]
        assert deltas == ["reasoning.delta"] * 2 + ["text.delta"] * 5
        record = await instance.record()
        assert (record.output, record.finish_reason) == (words(5), "stop")
        assert {"input_tokens", "output_tokens"} <= dict(record.usage or {}).keys()

    async def test_parallel_calls_are_made_in_their_order_and_once(self, rig: Rig, make: Make, paid: list[int]) -> None:
        instance = rig.instance(make())
        records = await instance.play(BOTH)
        record = await instance.record()
        assert [(tool.name, tool.effect, tool.status) for tool in record.tools] == [
            ("lookup", "read", "ok"),
            ("transfer", "once", "ok"),
        ]
        assert (record.output, paid) == (words(4), [3])
        assert types(records).index("tool.call") < types(records).index("tool.result")

    async def test_an_answer_that_breaks_off_never_completes_a_turn(self, rig: Rig, make: Make) -> None:
        instance = rig.instance(make(), model_retries=1)
        records = await instance.play("/say 2\n/drop")
        (end,) = ends(records)
        assert (end.type, end.fields()["code"], end.fields()["retryable"]) == ("turn.failed", "model_broken_off", True)
        assert types(records).count("step.rewound") == 1
        assert (await instance.record()).partial == words(2)

    async def test_an_error_in_mid_answer_fails_the_turn_with_its_words(self, rig: Rig, make: Make) -> None:
        instance = rig.instance(make())
        (end,) = ends(await instance.play("/say 2\n/fail out of order"))
        assert end.type == "turn.failed"
        assert "out of order" in end.fields()["message"]
        assert (await instance.record()).partial == words(2)

    async def test_a_cancel_ends_the_turn_in_mid_answer(self, rig: Rig, make: Make) -> None:
        instance = rig.instance(make())
        await instance.start("/say 2\n/sleep 60\n/say 2")
        await instance.shown("text.delta", 2)
        await instance.gateway.cancel(KEY, "t1", "enough", "ann")
        record = await instance.ended()
        assert (record.status, record.partial) == ("interrupted", words(2))

    @pytest.mark.parametrize("result", [1, 2])
    async def test_a_turn_whose_owner_is_lost_is_the_same_and_pays_once(
        self, rig: Rig, make: Make, paid: list[int], result: int
    ) -> None:
        """Lost as it records one of the results; each call is settled by its effect."""
        owner, other = rig.instance(make()), rig.instance(make())
        await owner.start('/say 1\n/tool transfer {"amount": 3}\n/say 1\n/tool lookup {"key": "a"}\n/say 1')
        await owner.shown("tool.call", result)
        if result == 2:
            await owner.shown("tool.result")
        await owner.live().writer.flush()
        owner.journal.refuse()
        other.clock.advance(PLENTY)
        await other.engine.take_over(KEY)
        record = await other.ended()
        assert (record.status, record.output, paid) == ("completed", words(3), [3])
        assert unbroken(await other.stored())

    async def test_a_later_turn_goes_on_with_the_session(self, rig: Rig, make: Make) -> None:
        """On another instance, told of a past with calls."""
        one, other = rig.instance(make()), rig.instance(make())
        await one.play(BOTH, "t1")
        await other.play("/say 3", "t2")
        assert (await other.record("t2")).output == words(3)
