"""The contract of turns, by an agent of ADK."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.tools import FunctionTool

from adk_agents.kit import Kit
from legato.agents.adk import AdkAgent, Rule, this_call
from models.subjects import Heard, OverWire, World
from models.turn_contract import Make, TurnContract


def tools(world: World) -> list[Any]:
    async def transfer(amount: int) -> int:
        return world.pay(this_call().key, amount)

    async def wire(amount: int) -> int:
        return world.pay(this_call().key, amount)

    return [world.lookup, transfer, FunctionTool(wire, require_confirmation=True), world.hold, world.endless]


class TestAdk(TurnContract):
    @pytest.fixture
    def world(self) -> World:
        return World()

    @pytest.fixture
    def make(self, kit: Kit, world: World) -> Make:
        rules = {
            "lookup": Rule(effect="read"),
            "transfer": Rule(timeout=2, reconcile=world.paid.get),
            "hold": Rule(effect="idempotent"),
            "endless": Rule(effect="read", timeout=0.05),
        }

        def made(**more: Any) -> AdkAgent:
            return kit.made(kit.agent(tools=tools(world)), rules=rules, **more)

        return made

    @pytest.fixture
    def heard(self, kit: Kit) -> Heard:
        return OverWire(kit.service)
