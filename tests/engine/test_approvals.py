"""A person is asked: nothing is held meanwhile, the first answer counts, the tool runs once and only if allowed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from engine.rig import KEY, PATIENCE, Gate, Instance, Rig, eventually, nth, types, unbroken
from legato import Agent, tool
from legato.agents import Call, Turn
from legato.engine.recovery import CHECKPOINT, checkpoint
from legato.errors import AlreadyDecided, NotFound
from legato.journal import Decision, TurnRecord
from legato.models.scripted import ScriptedModel
from legato.sweeper import Sweeper
from legato.tools import Tool
from legato.turn import TurnState

WIRE = '/say 1\n/tool wire {"amount":5}\n/say 1'
BOTH = '/parallel look {} wire {"amount":5}\n/say 1'
TWO = '/parallel wire {"amount":1} wire {"amount":2}\n/say 1'


@dataclass
class Bank:
    wired: list[int] = field(default_factory=list)
    looked: int = 0
    heaped: int = 0

    def tools(self) -> list[Tool]:
        @tool(approval=lambda arguments: f"Wire {arguments['amount']}?")
        async def wire(amount: int) -> int:
            self.wired.append(amount)
            return amount

        @tool(effect="read")
        async def look() -> str:
            self.looked += 1
            return "seen"

        @tool(effect="read")
        async def heap(size: int) -> str:
            self.heaped += 1
            return "x" * size

        return [wire, look, heap]


@pytest.fixture
def bank() -> Bank:
    return Bank()


def instance(rig: Rig, bank: Bank, **settings: Any) -> Instance:
    return rig.instance(Agent(model=ScriptedModel(), tools=bank.tools()), **settings)


async def waiting(one: Instance) -> TurnRecord:
    """Once its owner has also looked again whether it may go on with it."""
    await one.engine.rest(PATIENCE)
    record = await one.record()
    assert record.status == "waiting"
    return record


async def completed(*instances: Instance) -> str:
    records = [await one.ended() for one in instances]
    assert records[0].status == "completed", records
    assert records[0].output is not None
    return records[0].output


async def test_the_question_the_suspension_and_the_released_lease_are_one_commit(rig: Rig, bank: Bank) -> None:
    one = instance(rig, bank)
    await one.start(WIRE)
    await waiting(one)
    segments = await one.journal.read(KEY, 1, one.clock())
    assert types(segments[-1].records()) == ["approval.requested", "turn.suspended"]
    standing = await one.journal.standing(KEY)
    assert standing.lease
    assert standing.head
    assert (standing.lease.expires_at, standing.head.turn) == (0, ("t1", "waiting"))
    assert bank.wired == []


async def test_the_instance_that_gets_the_decision_goes_on_with_the_turn(rig: Rig, bank: Bank) -> None:
    one, other = instance(rig, bank), instance(rig, bank)
    await one.start(WIRE)
    await waiting(one)
    decided = await other.gateway.decide(KEY, "t1", "1-1-1", True, "fine")
    assert not decided.again
    assert await completed(other) == "w1 w2 "
    assert bank.wired == [5]
    assert unbroken(await other.stored())


async def test_the_decision_is_durable_before_the_tool_starts(rig: Rig, bank: Bank) -> None:
    one, other = instance(rig, bank), instance(rig, bank)
    await one.start(WIRE)
    await waiting(one)
    gate = Gate()
    other.journal.rule = nth(gate, 1, "append")
    deciding = asyncio.create_task(other.gateway.decide(KEY, "t1", "1-1-1", True, None))
    await gate.stood()
    assert bank.wired == []
    gate.open()
    await deciding
    assert await completed(other) == "w1 w2 "


async def test_who_says_no_is_told_to_the_model_and_the_tool_never_runs(rig: Rig, bank: Bank) -> None:
    one = instance(rig, bank)
    await one.start(WIRE)
    await waiting(one)
    await one.gateway.decide(KEY, "t1", "1-1-1", False, "too much")
    assert await completed(one) == "w1 w2 "
    assert bank.wired == []
    (call,) = (await one.record()).tools
    assert call.error
    assert (call.error.code, call.error.message) == ("denied", "denied by ann: too much")


async def test_nothing_else_of_the_turn_is_cut_short_by_a_question(rig: Rig, bank: Bank) -> None:
    one = instance(rig, bank)
    await one.start(BOTH)
    await waiting(one)
    assert types(await one.stored())[-3:] == ["tool.result", "approval.requested", "turn.suspended"]
    await one.gateway.decide(KEY, "t1", "1-2-1", True, None)
    await completed(one)
    assert (bank.looked, bank.wired) == (1, [5])


async def test_of_twenty_decisions_at_once_on_two_instances_one_counts_and_the_tool_runs_once(
    rig: Rig, bank: Bank
) -> None:
    instances = [instance(rig, bank), instance(rig, bank)]
    await instances[0].start(WIRE)
    await waiting(instances[0])
    decisions = (instances[n % 2].gateway.decide(KEY, "t1", "1-1-1", n % 3 > 0, None) for n in range(20))
    outcomes = await asyncio.gather(*decisions, return_exceptions=True)
    await completed(*instances)
    first = [outcome for outcome in outcomes if not isinstance(outcome, BaseException) and not outcome.again]
    assert len(first) == 1
    assert all(isinstance(outcome, AlreadyDecided) for outcome in outcomes if isinstance(outcome, BaseException))
    assert len(bank.wired) <= 1
    assert types(await instances[0].stored()).count("approval.resolved") == 1


async def test_an_answer_that_comes_while_the_turn_is_put_to_rest_again_is_not_lost(rig: Rig, bank: Bank) -> None:
    """Two questions: the second is answered while the first one's turn runs and is about to wait once more."""
    one, other = instance(rig, bank), instance(rig, bank)
    await one.start(TWO)
    await waiting(one)
    gate = Gate()
    one.journal.rule = nth(gate, 3, "commit")
    first = asyncio.create_task(one.gateway.decide(KEY, "t1", "1-1-1", True, None))
    await gate.stood()
    await other.gateway.decide(KEY, "t1", "1-2-1", True, None)
    gate.open()
    await first
    assert await completed(one, other) == "w1 "
    assert sorted(bank.wired) == [1, 2]


async def test_a_turn_that_waits_once_more_is_not_resumed_by_an_answer_it_had(rig: Rig, bank: Bank) -> None:
    one, other = instance(rig, bank), instance(rig, bank)
    await one.start(TWO)
    await waiting(one)
    await one.gateway.decide(KEY, "t1", "1-1-1", True, None)
    await eventually(lambda: bank.wired == [1])
    await waiting(one)
    before = await one.stored()
    await other.engine.take_over(KEY)
    assert await other.stored() == before
    assert types(before).count("turn.resumed") == 1


async def test_a_turn_put_to_rest_with_its_answer_is_found_by_the_next_sweep(rig: Rig, bank: Bank) -> None:
    """Its owner may be lost before it takes the answer up."""
    one, other = instance(rig, bank), instance(rig, bank)
    await one.start(TWO)
    await waiting(one)
    resting, looking = Gate(), Gate()
    one.journal.rule = nth(resting, 3, "commit")
    first = asyncio.create_task(one.gateway.decide(KEY, "t1", "1-1-1", True, None))
    await resting.stood()
    await other.gateway.decide(KEY, "t1", "1-2-1", True, None)
    one.journal.rule = nth(looking, 2, "standing")
    resting.open()
    await asyncio.gather(first, looking.stood())
    assert await other.journal.orphans(other.clock() + 1, 9) == [KEY]
    looking.open()


async def test_the_same_decision_again_is_answered_and_another_is_refused(rig: Rig, bank: Bank) -> None:
    one = instance(rig, bank)
    await one.start(WIRE)
    await waiting(one)
    await one.gateway.decide(KEY, "t1", "1-1-1", True, None)
    await completed(one)
    assert (await one.gateway.decide(KEY, "t1", "1-1-1", True, None)).again
    with pytest.raises(AlreadyDecided):
        await one.gateway.decide(KEY, "t1", "1-1-1", False, None)
    assert bank.wired == [5]


async def test_a_question_that_was_never_asked_is_not_found(rig: Rig, bank: Bank) -> None:
    one = instance(rig, bank)
    await one.start(WIRE)
    await waiting(one)
    with pytest.raises(NotFound):
        await one.gateway.decide(KEY, "t1", "9-9-9", True, None)
    assert (await one.record()).status == "waiting"


async def test_a_question_that_nobody_answers_in_time_is_answered_no(rig: Rig, bank: Bank) -> None:
    one, other = instance(rig, bank, approval=60), instance(rig, bank, approval=60)
    await one.start(WIRE)
    await waiting(one)
    other.clock.advance(61)
    with pytest.raises(AlreadyDecided):
        await other.gateway.decide(KEY, "t1", "1-1-1", True, None)
    await other.engine.take_over(KEY)
    assert await completed(other) == "w1 w2 "
    assert bank.wired == []


async def test_a_turn_that_waits_is_taken_over_for_nothing_else(rig: Rig, bank: Bank) -> None:
    one, other = instance(rig, bank), instance(rig, bank)
    await one.start(WIRE)
    await waiting(one)
    before = await one.stored()
    await other.engine.take_over(KEY)
    assert await other.stored() == before


async def test_a_turn_that_waits_is_gone_on_with_after_its_events_have_expired(rig: Rig, bank: Bank) -> None:
    """From its checkpoint: the text that was said, the calls that were made."""
    one, other = instance(rig, bank, approval=9 * 86400), instance(rig, bank, approval=9 * 86400)
    await one.start(WIRE)
    await waiting(one)
    other.clock.advance(5 * 86400)
    assert await other.stored() == []
    await other.gateway.decide(KEY, "t1", "1-1-1", True, None)
    assert await completed(other) == "w1 w2 "
    assert bank.wired == [5]


async def test_a_turn_waits_however_much_its_tools_have_given(rig: Rig, bank: Bank) -> None:
    """More than one Commit takes; it is all there again when the turn goes on, its events expired or not."""
    one, other = (instance(rig, bank, approval=9 * 86400) for _ in range(2))
    await one.start('/tool heap {"size":1900000}\n' * 2 + WIRE)
    await waiting(one)
    other.clock.advance(5 * 86400)
    await other.gateway.decide(KEY, "t1", "3-1-1", True, None)
    assert await completed(other) == "w1 w2 "
    assert (bank.wired, bank.heaped) == ([5], 2)


def test_what_a_checkpoint_leaves_out_has_names_that_no_other_one_has() -> None:
    """The one that counts stays whole while the pieces of the next are stored ahead of it."""
    state = TurnState("t1", "waiting", "x" * 1_000_000)
    first, second = ([private.name for private in checkpoint(seq, state, 0)] for seq in (7, 12))
    assert set(first) & set(second) == {first[-1]} == {CHECKPOINT}


async def test_a_snapshot_of_a_turn_that_waits_outlives_its_events(rig: Rig, bank: Bank) -> None:
    one = instance(rig, bank, approval=9 * 86400)
    await one.start(WIRE)
    await waiting(one)
    before = await one.gateway.snapshot(KEY, None)
    one.clock.advance(5 * 86400)
    assert await one.gateway.snapshot(KEY, None) == before


async def test_a_reader_of_a_turn_that_waits_is_told_so(rig: Rig, bank: Bank) -> None:
    """Whether it was there when the turn came to rest or came later, on any instance."""
    one, other = instance(rig, bank), instance(rig, bank)
    started = await one.start(WIRE)
    early = await other.follow(start=True)
    await waiting(one)
    late = await one.follow(start=True)
    for client in (early, late):
        messages = await client.end()
        assert [message.event for message in messages[-2:]] == ["turn.suspended", "stream.closing"]
        assert '"suspended"' in messages[-1].data
    assert started.created


async def test_a_decision_that_comes_after_the_answer_was_taken_up_is_refused(rig: Rig, bank: Bank) -> None:
    """The question was open when it was looked at; by the time of the write the turn waits for something else."""
    one, other = instance(rig, bank), instance(rig, bank)
    await one.start(WIRE + '\n/tool wire {"amount":6}')
    await waiting(one)
    gate = other.journal.hold("commit")
    late = asyncio.create_task(other.gateway.decide(KEY, "t1", "1-1-1", True, None))
    await gate.stood()
    await one.gateway.decide(KEY, "t1", "1-1-1", False, None)
    await one.shown("tool.result")
    await waiting(one)
    gate.open()
    with pytest.raises(AlreadyDecided):
        await late
    assert bank.wired == []


async def test_a_decision_that_comes_after_its_question_was_found_expired_is_refused(rig: Rig, bank: Bank) -> None:
    """The question was open when it was looked at."""
    one, other = instance(rig, bank, approval=60), instance(rig, bank, approval=60)
    await one.start(WIRE)
    await waiting(one)
    gate = other.journal.hold("commit")
    late = asyncio.create_task(other.gateway.decide(KEY, "t1", "1-1-1", True, None))
    await gate.stood()
    one.clock.advance(61)
    await one.engine.take_over(KEY)
    await completed(one)
    gate.open()
    with pytest.raises(AlreadyDecided):
        await late
    assert bank.wired == []


async def test_a_decision_that_was_taken_counts_though_its_question_has_expired_for_the_owner(
    rig: Rig, bank: Bank
) -> None:
    """Clocks differ: to whoever took the turn over the question is past its time, to who is asked it is not."""
    one, other = instance(rig, bank, approval=60), instance(rig, bank, approval=60)
    await one.start(WIRE)
    await waiting(one)
    gate = one.journal.hold("control")
    one.clock.advance(61)
    await one.engine.take_over(KEY)
    await gate.stood()
    assert not (await other.gateway.decide(KEY, "t1", "1-1-1", True, None)).again
    gate.open()
    assert await completed(one) == "w1 w2 "
    assert bank.wired == [5]


async def test_an_answer_that_comes_while_its_turn_is_looked_at_is_taken_up_at_once(rig: Rig, bank: Bank) -> None:
    """What was read before it came says that nobody asks for the turn."""
    one, other = instance(rig, bank), instance(rig, bank)
    await one.start(WIRE)
    await waiting(one)
    gate = Gate(after=True)
    one.journal.rule = nth(gate, 1, "standing")
    one.engine.adopt(KEY)
    await gate.stood()
    standing = await other.journal.standing(KEY)
    await other.engine.decide(KEY, "t1", "1-1-1", Decision(True, "ann", None, one.clock()), standing)
    assert await one.engine.take_over(KEY) is None
    gate.open()
    assert await completed(one) == "w1 w2 "


async def test_an_expiry_that_was_settled_stands_for_who_has_another_clock(rig: Rig, bank: Bank) -> None:
    """To who is asked the question is still open; the owner has found it expired and has not said so yet."""
    one, other = instance(rig, bank, approval=60), instance(rig, bank, approval=60)
    await one.start(WIRE)
    await waiting(one)
    gate = one.journal.hold("append")
    one.clock.advance(61)
    await one.engine.take_over(KEY)
    await gate.stood()
    with pytest.raises(AlreadyDecided):
        await other.gateway.decide(KEY, "t1", "1-1-1", True, None)
    gate.open()
    await completed(one)
    assert bank.wired == []


async def test_a_decision_on_a_turn_that_has_ended_meanwhile_is_refused(rig: Rig) -> None:
    """It had been resumed by another answer, and its agent has failed since the question was looked at."""
    entered, go = list[int](), asyncio.Event()

    @tool(effect="read", approval="Go?")
    async def endless(number: int) -> None:
        await asyncio.Event().wait()

    async def agent(turn: Turn) -> None:
        entered.append(1)
        calls = asyncio.ensure_future(turn.calls([Call(endless, "endless", {"number": n}) for n in (1, 2)]))
        await (go.wait() if len(entered) == 2 else calls)
        raise RuntimeError("it fails")

    one, other = rig.instance(agent), rig.instance(agent)
    await one.start()
    await waiting(one)
    await one.gateway.decide(KEY, "t1", "1-1-1", True, None)
    await one.shown("approval.resolved")
    gate = other.journal.hold("commit")
    late = asyncio.create_task(other.gateway.decide(KEY, "t1", "1-2-1", True, None))
    await gate.stood()
    go.set()
    assert (await one.ended()).status == "failed"
    gate.open()
    with pytest.raises(AlreadyDecided):
        await late


async def test_a_question_of_a_turn_that_is_being_cancelled_takes_no_answer(rig: Rig, bank: Bank) -> None:
    one, other = instance(rig, bank), instance(rig, bank)
    await one.start(WIRE)
    await waiting(one)
    await other.engine.cancel(KEY, "t1", "enough", "ann")
    with pytest.raises(AlreadyDecided):
        await one.gateway.decide(KEY, "t1", "1-1-1", True, None)


@pytest.mark.parametrize("asked", ["decision", "cancel"])
async def test_what_is_asked_of_a_turn_that_waits_brings_the_next_sweep_to_it(rig: Rig, bank: Bank, asked: str) -> None:
    """Whoever took it may be lost before it goes on with the turn."""
    one, other = instance(rig, bank), instance(rig, bank)
    await one.start(WIRE)
    await waiting(one)
    other.journal.rule = nth(Gate(), 2, "commit")
    work: asyncio.Task[Any]
    if asked == "decision":
        work = asyncio.create_task(other.gateway.decide(KEY, "t1", "1-1-1", True, None))
    else:
        work = asyncio.create_task(other.gateway.cancel(KEY, "t1", "enough", "ann"))
    await eventually(lambda: other.journal.calls.count("commit") == 2)
    assert await one.journal.orphans(one.clock() + 1, 9) == [KEY]
    assert (await Sweeper(one.runtime, one.engine).sweep()).ended == 1
    assert bank.wired == ([5] if asked == "decision" else [])
    work.cancel()


async def test_a_cancel_of_another_turn_brings_no_sweep_to_one_that_waits(rig: Rig, bank: Bank) -> None:
    one = instance(rig, bank)
    await one.start(WIRE)
    await waiting(one)
    await one.gateway.cancel(KEY, "t2", "enough", "ann")
    assert await one.journal.orphans(one.clock() + 1, 9) == []
