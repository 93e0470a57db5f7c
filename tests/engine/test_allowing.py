"""What a principal may not have done is refused in the Commit of its call: nobody enters it, asks about it, or runs it
again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from engine.rig import KEY, Gate, Instance, Rig, eventually, nth, types, unbroken
from engine.test_reentry import PLENTY, Stop, lose, text_of
from legato import Agent, ToolFailed, Turn, tool
from legato.agents import Call
from legato.events import Record
from legato.journal.firestore import FirestoreJournal
from legato.models.scripted import ScriptedModel
from legato.principal import Principal
from legato.tools import Tool

WIRE = '/tool wire {"amount":5}\n/say 1'
BOTH = '/parallel wire {"amount":5} wire {"amount":2}\n/say 1'
REFUSED = {"code": "forbidden", "message": "the call is not allowed for this user with these arguments"}


@dataclass
class Bank:
    """`wire` is allowed for small amounts. What it is asked is in `judged`, what it did in `wired`."""

    judged: list[tuple[str, Any]] = field(default_factory=list)
    wired: list[int] = field(default_factory=list)

    async def small(self, principal: Principal, arguments: dict[str, Any]) -> bool:
        self.judged.append((principal.uid, arguments))
        return bool(arguments["amount"] < 3)

    def tool(self, **more: Any) -> Tool:
        @tool(**{"name": "wire", "allow": self.small, **more})
        async def wire(amount: int, note: str = "") -> None:
            self.wired.append(amount)

        return wire

    def agent(self, **more: Any) -> Agent:
        return Agent(model=ScriptedModel(), tools=[self.tool(**more)])


@pytest.fixture
def bank() -> Bank:
    return Bank()


Opened = Callable[[object], Instance]


@pytest.fixture(params=["sqlite", pytest.param("firestore", marks=pytest.mark.emulator)])
async def opened(rig: Rig, request: pytest.FixtureRequest) -> AsyncIterator[Opened]:
    """Instances over one journal of either kind."""
    if request.param == "sqlite":
        yield rig.instance
    else:
        emulator, project = (request.getfixturevalue(name) for name in ("emulator", "firestore_project"))
        yield lambda agent: rig.instance(agent, journal=FirestoreJournal(project, "(default)", emulator=emulator))


def results(records: list[Record]) -> list[dict[str, Any]]:
    return [record.fields() for record in records if record.type == "tool.result"]


async def test_a_call_that_is_not_allowed_is_refused_and_its_tool_never_entered(opened: Opened, bank: Bank) -> None:
    records = await opened(bank.agent()).play(WIRE)
    assert types(records)[1:3] == ["tool.call", "tool.result"]
    assert results(records)[0]["error"] == REFUSED
    assert (bank.judged, bank.wired) == ([("ann", {"amount": 5, "note": ""})], [])


async def test_a_refusal_is_durable_in_one_commit_with_its_call(opened: Opened, bank: Bank) -> None:
    one = opened(bank.agent())
    await one.play(WIRE)
    (segment,) = [each for each in one.journal.segments if "tool.call" in types(each.records())]
    assert types(segment.records()) == ["tool.call", "tool.result"]


async def test_calls_beside_one_that_is_refused_are_made(opened: Opened, bank: Bank) -> None:
    records = await opened(bank.agent()).play(BOTH)
    assert {each["call"]: each["ok"] for each in results(records)} == {"1-1": False, "1-2": True}
    assert bank.wired == [2]


async def lost_at(gate: Gate, opened: Opened, bank: Bank) -> Instance:
    """The turn's second owner, at its end; the first one stands at the Commit of its call, and is let go then."""
    owner, other = opened(bank.agent()), opened(bank.agent())
    owner.journal.rule = nth(gate, 2, "commit")
    await owner.start(WIRE)
    await gate.stood()
    other.clock.advance(PLENTY)
    await other.engine.take_over(KEY)
    await other.ended()
    gate.open()
    await eventually(lambda: not owner.engine.live)
    return other


async def test_an_owner_lost_before_its_refusal_is_durable_leaves_nothing_of_the_call(
    opened: Opened, bank: Bank
) -> None:
    """The next one judges anew."""
    other = await lost_at(Gate(), opened, bank)
    assert (len(bank.judged), bank.wired) == (2, [])
    assert [each["error"] for each in results(await other.stored())] == [REFUSED]
    assert unbroken(await other.stored())


async def test_an_owner_lost_after_its_refusal_was_durable_leaves_a_call_that_is_settled(
    opened: Opened, bank: Bank
) -> None:
    """The next one neither judges nor runs it, though it is a `once` call."""
    other = await lost_at(Gate(after=True), opened, bank)
    assert (len(bank.judged), bank.wired) == (1, [])
    assert types(await other.stored()) == [
        "turn.started",
        "tool.call",
        "tool.result",
        "turn.resumed",
        "text.delta",
        "turn.completed",
    ]


async def test_an_agent_entered_again_is_told_the_refusal_as_it_was(rig: Rig, bank: Bank) -> None:
    stop, wire = Stop(), bank.tool()

    async def agent(turn: Turn) -> None:
        with pytest.raises(ToolFailed) as failed:
            await turn.call(wire, amount=5)
        turn.text(f"{failed.value.code}: {failed.value}")
        await stop()

    owner, other = rig.instance(agent), rig.instance(agent)
    await owner.start()
    await lose(owner, other, stop.reached)
    assert text_of(await other.ended()) == "forbidden: " + REFUSED["message"]
    assert len(bank.judged) == 1


async def test_nobody_is_asked_to_approve_what_is_not_allowed(rig: Rig, bank: Bank) -> None:
    records = await rig.instance(bank.agent(approval="Wire?")).play(WIRE)
    assert "approval.requested" not in types(records)
    assert results(records)[0]["error"] == REFUSED


async def test_a_person_is_asked_about_what_is_allowed_and_it_is_judged_once(rig: Rig, bank: Bank) -> None:
    one, other = (rig.instance(bank.agent(approval="Wire?")) for _ in range(2))
    await one.start('/tool wire {"amount":2}\n/say 1')
    await eventually(lambda: not one.engine.live)
    await other.gateway.decide(KEY, "t1", "1-1-1", True, None)
    await other.ended()
    assert (len(bank.judged), bank.wired) == (1, [2])


async def test_arguments_that_do_not_fit_stay_bad_arguments_and_are_not_judged(rig: Rig, bank: Bank) -> None:
    records = await rig.instance(bank.agent()).play('/tool wire {"amount":"much"}\n/say 1')
    assert results(records)[0]["error"]["code"] == "bad_arguments"
    assert bank.judged == []


async def test_a_turn_is_not_put_to_rest_while_a_call_is_judged(rig: Rig, bank: Bank) -> None:
    """A branch waits for a person meanwhile."""
    stop, ask = Stop(), bank.tool(name="ask", approval="Wire?", allow=None)

    async def slow(principal: Principal, arguments: dict[str, Any]) -> bool:
        await stop()
        return False

    wire = bank.tool(allow=slow)

    async def agent(turn: Turn) -> None:
        await asyncio.gather(turn.call(ask, amount=1), turn.calls([Call(wire, "wire", {"amount": 2})]))

    one = rig.instance(agent)
    await one.start()
    await stop.stood()
    await eventually(lambda: one.live().questions.open)
    assert not one.live().calls.quiet.is_set()
    stop.opened.set()
    await eventually(lambda: not one.engine.live)
    assert types(await one.stored())[-3:] == ["tool.result", "approval.requested", "turn.suspended"]
