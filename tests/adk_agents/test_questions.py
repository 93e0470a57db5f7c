"""ADK's confirmations are approvals: nothing is held while a person thinks, and any instance goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.tools import FunctionTool
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.tool_context import ToolContext

from adk_agents.kit import Kit
from engine.rig import KEY, PATIENCE, Instance, Rig, types
from legato.journal import TurnRecord


async def asked(one: Instance) -> dict[str, Any]:
    """The question of a turn that waits, and is nowhere at work."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if (await one.record()).status == "waiting":
                asked = [record.fields() for record in await one.stored() if record.type == "approval.requested"]
                return asked[-1]
            await asyncio.sleep(0.005)


async def approved(rig: Rig, kit: Kit, agent: Any) -> TurnRecord:
    """What comes of the turn when another instance is told that a person agrees."""
    other = rig.instance(kit.made(agent))
    question = await asked(other)
    await other.gateway.decide(KEY, "t1", question["request"], True, None)
    return await other.ended()


def confirming(kit: Kit) -> Any:
    return kit.agent(tools=[FunctionTool(kit.transfer, require_confirmation=True), kit.lookup])


async def test_what_runs_beside_a_question_is_done_and_not_repeated(rig: Rig, kit: Kit) -> None:
    one = rig.instance(kit.made(confirming(kit)))
    await one.start('/parallel lookup {"key": "a"} transfer {"amount": 5}\n/say 1')
    assert (await asked(one))["prompt"] == "transfer(amount=5)?"
    record = await approved(rig, kit, confirming(kit))
    assert [tool.status for tool in record.tools] == ["ok", "ok"]
    assert [key[-3:] for key in kit.entered] == ["2-1", "3-1"]


async def test_only_what_needs_it_is_asked_about(rig: Rig, kit: Kit) -> None:
    def large(amount: int) -> bool:
        return amount > 3

    agent = kit.agent(tools=[FunctionTool(kit.transfer, require_confirmation=large)])
    one = rig.instance(kit.made(agent))
    records = await one.play('/tool transfer {"amount": 3}\n/say 1')
    assert "approval.requested" not in types(records)


async def careful(what: str, tool_context: ToolContext) -> dict[str, Any]:
    """Asks by itself."""
    if not tool_context.tool_confirmation:
        tool_context.request_confirmation(hint=f"Really {what}?", payload={"times": 1})
        return {"status": "pending"}
    tool_context.state["done"] = what
    return {"done": what, "payload": tool_context.tool_confirmation.payload}


async def test_a_tool_that_asks_by_itself_is_called_again_with_its_confirmation(rig: Rig, kit: Kit) -> None:
    """What it asks is what the person is asked; the payload it proposes is what it gets."""
    one = rig.instance(kit.made(kit.agent(tools=[careful])))
    await one.start('/tool careful {"what": "it"}\n/say 1')
    assert (await asked(one))["prompt"] == "Really it?"
    record = await approved(rig, kit, kit.agent(tools=[careful]))
    assert [tool.content for tool in record.tools] == [
        {"status": "pending"},
        {"done": "it", "payload": {"times": 1}},
    ]
    assert record.output == "w1 "


@pytest.mark.filterwarnings("ignore:The `plugins` argument is deprecated:DeprecationWarning")  # it is ADK that uses it
@pytest.mark.parametrize("kind", ["sub-agent", "agent-tool"])
async def test_the_tool_of_an_agent_below_is_asked_about_too(rig: Rig, kit: Kit, kind: str) -> None:
    def made() -> Any:
        if kind == "sub-agent":
            return kit.agent("boss", sub_agents=[confirming(kit)])
        return kit.agent("boss", [AgentTool(confirming(kit))])

    begin = {
        "sub-agent": '/tool transfer_to_agent {"agent_name": "root"}\n',
        "agent-tool": '/tool root {"request": "/tool transfer {\\"amount\\": 5}"}\n',
    }
    one = rig.instance(kit.made(made()))
    await one.start(begin[kind] + '/tool transfer {"amount": 5}\n/say 1' * (kind == "sub-agent"))
    record = await approved(rig, kit, made())
    assert (record.status, list(kit.ledger.values())) == ("completed", [5])
