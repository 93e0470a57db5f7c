"""ADK's agents in the engine's rig, their models at the local Gemini."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from adk_agents.kit import Kit
from engine.rig import Rig
from local_gemini import LocalGemini

pytest.register_assert_rewrite("models.turn_contract")


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = Rig(tmp_path / "journal.sqlite")
    async with made.stack:
        yield made


@pytest.fixture
async def service() -> AsyncIterator[LocalGemini]:
    async with LocalGemini() as local:
        yield local


@pytest.fixture
def kit(service: LocalGemini) -> Kit:
    return Kit(service)
