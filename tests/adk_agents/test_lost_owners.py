"""An agent of ADK whose owner is lost is entered again by another, wherever it was: the same turn comes of it."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest
from google.adk.agents import ParallelAgent
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.agent_tool import AgentTool
from google.adk.workflow import START, Workflow, node
from google.genai.types import Content, Part
from pydantic_core import from_json

from adk_agents.kit import Kit
from engine.rig import KEY, PATIENCE, Instance, Rig, Rule, unbroken
from engine.test_reentry import PLENTY
from legato.journal import TurnRecord

WRITES = ("append", "commit")
SCRIPT = """/think 1
/say 2
/tool transfer {"amount": 1}
/say 1
/parallel remember {"amount": 3} transfer {"amount": 2} lookup {"key": "a"}
/say 1
/tool remember {"amount": 4}
/say 1"""


TRANSFER = '/tool transfer {"amount": 1}'


def redact(callback_context: Any, llm_response: Any) -> Any:
    parts = [p.model_copy(update={"text": p.text and p.text.replace("w2", "**")}) for p in llm_response.content.parts]
    return llm_response.model_copy(update={"content": Content(role="model", parts=parts)})


def away_from(number: int, reached: asyncio.Event) -> Rule:
    """The journal is gone from its `number`th write on."""
    writes = count(1)

    def rule(name: str) -> Any:
        if name in WRITES and next(writes) >= number:
            reached.set()
        return "refuse" if reached.is_set() else None

    return rule


async def lost_at(number: int, owner: Instance, other: Instance, script: str) -> bool:
    """The turn's owner is cut off at its `number`th write, and the other goes on. False: it has not so many."""
    reached = asyncio.Event()
    await owner.start(script)
    owner.journal.rule = away_from(number, reached)
    ended = asyncio.create_task(owner.live().over.wait())
    cut = asyncio.create_task(reached.wait())
    async with asyncio.timeout(PATIENCE):
        await asyncio.wait((ended, cut), return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if not cut.done():
            cut.cancel()
            return False
        other.clock.advance(PLENTY)
        await other.engine.take_over(KEY)
    return True


def told(record: TurnRecord) -> Any:
    tools = sorted((tool.name, str(tool.arguments), tool.status, str(tool.content)) for tool in record.tools)
    return record.status, record.output, tools, record.usage


async def kept(one: Instance) -> Any:
    texts = await one.journal._journal.private(KEY, "-", one.clock())
    (text,) = texts.values()
    value = from_json(text)["value"]
    return value["state"], [event.get("content") for event in value["events"]]


async def same_wherever_lost(make: Any, kit: Kit, script: str, tmp_path: Any) -> None:
    """For every write of the owner's: as if nothing had happened, and each transfer made once."""
    calm = None
    for number in count(0):
        rig = Rig(tmp_path / f"{number}.sqlite")
        async with rig.stack:
            kit.ledger.clear()
            owner, other = rig.instance(make()), rig.instance(make())
            if number == 0:
                await owner.play(script)
            elif not await lost_at(number, owner, other, script):
                assert number > 4
                return
            ended = owner if number == 0 else other
            now = told(await ended.ended()), await kept(ended), sorted(kit.ledger.values())
            assert unbroken(await ended.stored())
        calm = calm or now
        assert now == calm, f"lost at write {number}"


async def test_a_turn_is_the_same_wherever_its_owner_is_lost(kit: Kit, tmp_path: Any) -> None:
    """Its text, its tools, what is kept of its session: the thoughts' signatures and the state that tools have left."""
    await same_wherever_lost(kit.made, kit, SCRIPT, tmp_path)


async def test_a_guarded_turn_is_the_same_wherever_its_owner_is_lost(kit: Kit, tmp_path: Any) -> None:
    def make() -> Any:
        return kit.made(kit.agent(tools=kit.tools, after_model_callback=redact))

    await same_wherever_lost(make, kit, SCRIPT, tmp_path)


async def test_a_turn_of_several_agents_is_the_same_wherever_its_owner_is_lost(kit: Kit, tmp_path: Any) -> None:
    def make() -> Any:
        worker = kit.agent("worker", [kit.transfer], description="Transfers.")
        return kit.made(kit.agent("boss", [kit.lookup], sub_agents=[worker]))

    script = '/say 1\n/tool lookup {"key": "a"}\n/tool transfer_to_agent {"agent_name": "worker"}\n/say 1\n'
    await same_wherever_lost(make, kit, script + '/tool transfer {"amount": 2}\n/say 1', tmp_path)


@pytest.mark.filterwarnings("ignore:The `plugins` argument is deprecated:DeprecationWarning")  # it is ADK that uses it
async def test_agents_used_as_tools_are_the_same_wherever_their_owner_is_lost(kit: Kit, tmp_path: Any) -> None:
    """Two at once, of one name."""

    def make() -> Any:
        return kit.made(kit.agent(tools=[AgentTool(kit.agent("inner", [kit.transfer]))]))

    inner = [f'{{"request": "/sleep {0.2 / n}\\n/tool transfer {{\\"amount\\": {n}}}\\n/say {n}"}}' for n in (1, 2)]
    await same_wherever_lost(make, kit, f"/say 1\n/parallel inner {inner[0]} inner {inner[1]}\n/say 1", tmp_path)


async def test_an_error_that_a_callback_answers_is_the_same_wherever_its_owner_is_lost(kit: Kit, tmp_path: Any) -> None:
    def instead(callback_context: Any, llm_request: Any, error: Exception) -> LlmResponse:
        return LlmResponse(content=Content(role="model", parts=[Part(text=f"sorry: {type(error).__name__}")]))

    def make() -> Any:
        return kit.made(kit.agent(tools=kit.tools, on_model_error_callback=instead))

    await same_wherever_lost(make, kit, '/say 1\n/tool transfer {"amount": 1}\n/fail broken', tmp_path)


def side_by_side(kit: Kit, **more: Any) -> Any:
    """Agents of different names, of which one doubles what it transfers."""

    def double(tool: Any, args: dict[str, Any], tool_context: Any) -> None:
        args["amount"] *= 2

    one = kit.agent("one", [kit.transfer], **more)
    two = kit.agent("two", [kit.transfer], before_tool_callback=double, **more)
    with pytest.deprecated_call():
        return ParallelAgent(name="both", sub_agents=[one, two])


def workers(kit: Kit, **more: Any) -> Any:
    """Two runs of one agent, of which one takes its time."""

    def split(node_input: Any) -> list[str]:
        paces = {1: "/sleep 0.1\n", 2: ""}
        return [f'{paces[n]}/say 1\n/tool transfer {{"amount": {n}}}\n{paces[n]}/say 1' for n in paces]

    worker = node(kit.agent("worker", [kit.transfer], **more), parallel_worker=True)
    return Workflow(name="flow", edges=[(START, split), (split, worker)])


@pytest.mark.parametrize(
    ("make", "more"),
    [(side_by_side, {}), (workers, {"after_model_callback": redact})],
    ids=["side-by-side", "guarded-workers"],
)
async def test_what_runs_side_by_side_is_done_and_said_once_wherever_its_owner_is_lost(
    kit: Kit, tmp_path: Any, make: Any, more: dict[str, Any]
) -> None:
    for number in count(1):
        rig = Rig(tmp_path / f"{number}.sqlite")
        async with rig.stack:
            kit.ledger.clear()
            owner, other = (rig.instance(kit.made(make(kit, **more))) for _ in range(2))
            if not await lost_at(number, owner, other, f"/say 1\n{TRANSFER}\n/say 1"):
                assert number > 4
                return
            record = await other.ended()
            assert record.status == "completed", record
            assert sorted((record.output or "").split()) == sorted(["w1", "**" if more else "w2"] * 2)
            assert sorted(kit.ledger.values()) == [1, 2]


async def test_an_agent_that_does_not_do_what_it_did_before_fails_its_turn(rig: Rig, kit: Kit) -> None:
    script = '/say 1\n/tool lookup {"key": "a"}\n/sleep 30'
    owner, other = rig.instance(kit.made()), rig.instance(kit.made(kit.agent("another", [kit.lookup])))
    await owner.start(script)
    await owner.shown("tool.result")
    owner.journal.refuse()
    other.clock.advance(PLENTY)
    await other.engine.take_over(KEY)
    record = await other.ended()
    assert record.error
    assert record.error["code"] == "agent_diverged"


def test_what_is_kept_reads_back_as_it_was() -> None:
    """Bytes too: signatures, and data that a tool or a person gave."""
    from google.adk.events.event import Event

    from legato.agents.adk.session import Kept

    part = Part(text="a", thought_signature=bytes(range(256)))
    event = Event(
        author="root",
        content=Content(role="model", parts=[part, Part.from_bytes(data=b"\xff\x00", mime_type="image/png")]),
    )
    kept = Kept(events=[event], state={"n": 1})
    assert Kept.model_validate_json(kept.model_dump_json(by_alias=True)) == kept
