"""The contract of turns, by the agents of two models; `adk_agents.test_turn_contract` has ADK's."""

from __future__ import annotations

import pytest

from legato import Agent, tool
from legato.demo import lookup
from legato.models import Model
from legato.models.gemini import Gemini
from legato.models.scripted import ScriptedModel
from models.turn_contract import Make, TurnContract


@pytest.fixture
def paid() -> list[int]:
    return []


@pytest.fixture
def make(model: Model, paid: list[int]) -> Make:
    by_key: dict[str, int] = {}

    @tool(effect="once", timeout=2, reconcile=by_key.get)
    async def transfer(amount: int, *, key: str) -> int:
        """Transfers an amount."""
        paid.append(amount)
        by_key[key] = amount
        return amount

    return lambda: Agent(model=model, tools=[lookup, transfer])


class TestScripted(TurnContract):
    @pytest.fixture
    def model(self) -> Model:
        return ScriptedModel()


class TestGemini(TurnContract):
    @pytest.fixture
    def model(self, studio: Gemini) -> Model:
        return studio
