"""What every adapter must hold in a turn, whether it brings a model or a whole agent.

Its own test file supplies `heard`, the service behind it, and `make`, which makes an agent, each time one of its own,
whose model follows the scripts of `models.scripted` and whose tools act on `world`: `lookup(key)`, a `read`;
`transfer(amount)`, a `once` that can be reconciled; `wire(amount)`, for which a person is asked; `hold()`, which is
`idempotent`; and `endless()`, a `read` of 0.05 s at most. `make` passes `silence` on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from engine.rig import KEY, PATIENCE, Instance, Rig, ends, eventually, types, unbroken
from engine.test_reentry import PLENTY
from legato.journal import TurnRecord
from models.subjects import Heard, World

Make = Callable[..., Any]
BOTH = '/think 2\n/say 2\n/parallel lookup {"key": "a"} transfer {"amount": 3}\n/say 2'
PIECES = 6
"""Of the first answer to BOTH: two thoughts, two words, two calls."""
WIRE = '/say 1\n/tool lookup {"key": "a"}\n/say 1\n/tool wire {"amount": 5}\n/say 1'


def words(number: int) -> str:
    return "".join(f"w{n} " for n in range(1, number + 1))


def outcomes(record: TurnRecord) -> list[tuple[str, str, str]]:
    return [(tool.name, tool.effect, tool.error.code if tool.error else tool.status) for tool in record.tools]


async def lose(owner: Instance, other: Instance) -> None:
    """The owner is cut off from its journal, and its lease runs out before `other` takes over."""
    await owner.live().writer.flush()
    owner.journal.refuse()
    other.clock.advance(PLENTY)
    await other.engine.take_over(KEY)


async def decided(one: Instance, other: Instance, approved: bool) -> TurnRecord:
    """What comes of a turn that waits, and is nowhere at work, when another instance is told of a person's decision."""
    await eventually(lambda: not one.engine.live)
    (asked,) = [record.fields() for record in await one.stored() if record.type == "approval.requested"]
    assert asked["kind"] == "approval"
    await other.gateway.decide(KEY, "t1", asked["request"], approved, "so be it")
    return await other.ended()


async def idle(heard: Heard) -> int:
    """The pieces of an answer of which no more are taken."""
    async with asyncio.timeout(PATIENCE):
        while True:
            before = heard.taken(0)
            await asyncio.sleep(0.2)
            if before == heard.taken(0) > 0:
                return before


class TurnContract:
    async def test_text_is_shown_as_it_comes_apart_from_thoughts_and_once(self, rig: Rig, make: Make) -> None:
        instance = rig.instance(make())
        records = await instance.play("/think 2\n/say 5")
        deltas = [kind for kind in types(records) if kind.endswith(".delta")]
        assert deltas == ["reasoning.delta"] * 2 + ["text.delta"] * 5
        record = await instance.record()
        assert (record.output, record.finish_reason) == (words(5), "stop")

    async def test_tokens_are_counted_by_kind_over_all_answers(self, rig: Rig, make: Make) -> None:
        instance = rig.instance(make())
        await instance.play('/say 2\n/tool lookup {"key": "a"}\n/say 3')
        usage = dict((await instance.record()).usage or {})
        assert usage.pop("input_tokens") > 0
        assert usage == {"output_tokens": 5}

    async def test_parallel_calls_are_made_in_their_order_and_once(self, rig: Rig, make: Make, world: World) -> None:
        instance = rig.instance(make())
        records = await instance.play(BOTH)
        record = await instance.record()
        assert outcomes(record) == [("lookup", "read", "ok"), ("transfer", "once", "ok")]
        assert [tool.call for tool in record.tools] == sorted(tool.call for tool in record.tools)
        assert (record.output, world.looked, [*world.paid.values()]) == (words(4), ["a"], [3])
        assert types(records).index("tool.call") < types(records).index("tool.result")

    @pytest.mark.parametrize("name", ["endless", "nobody"])
    async def test_a_call_that_fails_is_told_and_the_turn_goes_on(
        self, rig: Rig, make: Make, heard: Heard, name: str
    ) -> None:
        """One that takes too long, and one of a tool that there is none of."""
        instance = rig.instance(make())
        await instance.play(f'/parallel {name} {{}} lookup {{"key": "a"}}\n/say 1')
        record = await instance.record()
        assert (record.status, record.output) == ("completed", words(1))
        assert outcomes(record)[-1] == ("lookup", "read", "ok")
        assert "the value of a" in heard.asked()[1]
        assert {"endless": "0.05 s", "nobody": "nobody"}[name] in heard.asked()[1].replace(f"/parallel {name}", "")

    async def test_a_later_turn_is_told_of_the_session(self, rig: Rig, make: Make, heard: Heard) -> None:
        """On another instance, which has seen nothing of it."""
        one, other = rig.instance(make()), rig.instance(make())
        await one.play(BOTH, "t1")
        await other.play("/say 3", "t2")
        assert (await other.record("t2")).output == words(3)
        told = heard.asked()[2]
        assert all(past in told for past in ["/think 2", "w1 w2 ", "w3 w4 ", "transfer", "the value of a"])

    async def test_a_turn_is_whole_wherever_its_model_broke_off(
        self, rig: Rig, make: Make, heard: Heard, world: World
    ) -> None:
        """What was said of the broken answer is taken back first, and no call of it was made."""
        instance = rig.instance(make())
        for turn, after in enumerate([0, 3, PIECES - 1, PIECES], 1):
            heard.break_off(after)
            await instance.start(BOTH, f"t{turn}")
            record = await instance.ended(f"t{turn}")
            assert (record.status, record.output, len(record.tools)) == ("completed", words(4), 2)
            assert len(world.paid) == turn
        assert types(await instance.stored()).count("step.rewound") == 3

    async def test_a_model_that_always_breaks_off_never_completes_a_turn(self, rig: Rig, make: Make) -> None:
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

    async def test_a_silent_model_is_given_up_and_its_call_torn_down(self, rig: Rig, make: Make, heard: Heard) -> None:
        instance = rig.instance(make(silence=0.5), model_retries=0)
        (end,) = ends(await instance.play("/say 1\n/sleep 60"))
        assert end.fields()["code"] == "model_silent"
        assert await heard.left(0)

    @pytest.mark.parametrize("said", [2, 0], ids=["in-mid-answer", "before-it"])
    async def test_a_cancel_tears_the_models_call_down(self, rig: Rig, make: Make, heard: Heard, said: int) -> None:
        instance = rig.instance(make())
        await instance.start("/say 2\n/sleep 60\n/say 2" if said else "/sleep 60\n/say 2")
        await eventually(lambda: len(heard.asked()) == 1)
        if said:
            await instance.shown("text.delta", said)
        await instance.gateway.cancel(KEY, "t1", "enough", "ann")
        record = await instance.ended()
        assert (record.status, record.partial or "") == ("interrupted", words(said))
        assert await heard.left(0)

    async def test_a_cancel_tears_down_a_call_that_is_held_back(self, rig: Rig, make: Make, heard: Heard) -> None:
        heard.flood(999)
        instance = rig.instance(make(), ahead_bytes=8192)
        frames = instance.gateway.attach(KEY, await instance.start("go")).frames()
        await anext(frames)
        await idle(heard)
        await instance.gateway.cancel(KEY, "t1", "enough", "ann")
        assert (await instance.ended()).status == "interrupted"
        assert await heard.left(0)

    async def test_an_owner_that_ends_tears_its_models_call_down(self, rig: Rig, make: Make, heard: Heard) -> None:
        instance = rig.instance(make())
        await instance.start("/say 2\n/sleep 60")
        await instance.shown("text.delta", 2)
        await instance.engine.close()
        assert await heard.left(0)

    async def test_a_client_that_does_not_read_holds_the_model_back(self, rig: Rig, make: Make, heard: Heard) -> None:
        heard.flood(999)
        instance = rig.instance(make(), ahead_bytes=8192)
        frames = instance.gateway.attach(KEY, await instance.start("go")).frames()
        await anext(frames)
        assert await idle(heard) < 999
        async with asyncio.timeout(PATIENCE):
            async for _ in frames:
                pass
        assert (await instance.record()).output == "w " * 999

    @pytest.mark.parametrize("result", [1, 2])
    async def test_a_turn_whose_owner_is_lost_is_the_same_and_pays_once(
        self, rig: Rig, make: Make, world: World, result: int
    ) -> None:
        """Lost as it records one of the results; each call is settled by its effect."""
        owner, other = rig.instance(make()), rig.instance(make())
        await owner.start('/say 1\n/tool transfer {"amount": 3}\n/say 1\n/tool lookup {"key": "a"}\n/say 1')
        await owner.shown("tool.call", result)
        if result == 2:
            await owner.shown("tool.result")
        await lose(owner, other)
        record = await other.ended()
        assert (record.status, record.output, [*world.paid.values()]) == ("completed", words(3), [3])
        assert unbroken(await other.stored())

    async def test_a_recorded_answer_is_not_asked_for_again(
        self, rig: Rig, make: Make, heard: Heard, world: World
    ) -> None:
        """Nor is a recorded call made again. The next answer is told both, as they came."""
        owner, other = rig.instance(make()), rig.instance(make())
        await owner.start('/think 1\n/say 1\n/tool lookup {"key": "a"}\n/say 1\n/tool hold {}\n/say 1')
        async with asyncio.timeout(PATIENCE):
            await world.held.wait()
        await lose(owner, other)
        world.opened.set()
        record = await other.ended()
        assert (record.status, record.output) == ("completed", words(3))
        assert (len(heard.asked()), world.looked) == (3, ["a"])
        assert all(past in heard.asked()[2] for past in ["w1 ", "the value of a", "w2 ", "let go"])

    async def test_a_tool_runs_once_a_person_has_approved_it(
        self, rig: Rig, make: Make, heard: Heard, world: World
    ) -> None:
        """On whichever instance hears of it: what is recorded is not done again."""
        one, other = rig.instance(make()), rig.instance(make())
        await one.start(WIRE)
        record = await decided(one, other, approved=True)
        assert (record.status, record.output) == ("completed", words(3))
        assert ([*world.paid.values()], world.looked, len(heard.asked())) == ([5], ["a"], 3)

    async def test_a_tool_that_a_person_denies_does_not_run_and_its_model_is_told(
        self, rig: Rig, make: Make, heard: Heard, world: World
    ) -> None:
        one, other = rig.instance(make()), rig.instance(make())
        await one.start(WIRE)
        record = await decided(one, other, approved=False)
        assert (record.status, record.output, world.paid) == ("completed", words(3), {})
        assert "denied by ann: so be it" in heard.asked()[2]
