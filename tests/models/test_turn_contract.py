"""The contract of turns, by the agents of two models; `adk_agents.test_turn_contract` has ADK's."""

from __future__ import annotations

from typing import Any

import pytest

from legato import Agent, Tool, tool
from legato.models import Model
from legato.models.gemini import Gemini
from local_gemini import LocalGemini
from models.subjects import Heard, OverWire, ScriptedService, World
from models.turn_contract import Make, TurnContract


def tools(world: World) -> list[Tool]:
    @tool(effect="once", timeout=2, reconcile=world.paid.get)
    async def transfer(amount: int, *, key: str) -> int:
        return world.pay(key, amount)

    @tool(approval="Wire it?")
    async def wire(amount: int, *, key: str) -> int:
        return world.pay(key, amount)

    return [
        tool(effect="read")(world.lookup),
        transfer,
        wire,
        tool(effect="idempotent")(world.hold),
        tool(effect="read", timeout=0.05)(world.endless),
    ]


class ByModel(TurnContract):
    @pytest.fixture
    def world(self) -> World:
        return World()

    @pytest.fixture
    def make(self, model: Model, world: World) -> Make:
        def made(**more: Any) -> Agent:
            return Agent(model=model, tools=tools(world), **more)

        return made


class TestScripted(ByModel):
    @pytest.fixture
    def model(self) -> ScriptedService:
        return ScriptedService()

    @pytest.fixture
    def heard(self, model: ScriptedService) -> Heard:
        return model


class TestGemini(ByModel):
    @pytest.fixture
    def model(self, studio: Gemini) -> Model:
        return studio

    @pytest.fixture
    def heard(self, service: LocalGemini) -> Heard:
        return OverWire(service)
