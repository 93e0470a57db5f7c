"""The contract of turns, by an agent of ADK."""

from __future__ import annotations

import pytest

from adk_agents.kit import Kit
from models.turn_contract import Make, TurnContract


class TestAdk(TurnContract):
    @pytest.fixture
    def make(self, kit: Kit) -> Make:
        return kit.made

    @pytest.fixture
    def paid(self, kit: Kit) -> list[int]:
        return kit.paid
