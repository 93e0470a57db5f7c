"""The local Gemini and the model that talks to it, by either of its addresses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from google.oauth2.credentials import Credentials

from engine.rig import Rig
from legato.models.gemini import Gemini
from local_gemini import LocalGemini

pytest.register_assert_rewrite("models.contract", "models.turn_contract")

STUDIO: dict[str, Any] = {"api_key": "k"}
VERTEX: dict[str, Any] = {"vertexai": True, "project": "p", "location": "europe-west1"}


@pytest.fixture
async def service() -> AsyncIterator[LocalGemini]:
    async with LocalGemini() as local:
        yield local


@pytest.fixture(params=["studio", "vertex"])
async def gemini(request: pytest.FixtureRequest, service: LocalGemini) -> AsyncIterator[Gemini]:
    """By AI Studio's key and by Vertex AI's project."""
    credentials = Credentials(token="t")
    mine = STUDIO if request.param == "studio" else {**VERTEX, "credentials": credentials}
    async with Gemini(http_options={"base_url": service.url}, **mine) as model:
        yield model


@pytest.fixture
async def studio(service: LocalGemini) -> AsyncIterator[Gemini]:
    async with Gemini(http_options={"base_url": service.url}, **STUDIO) as model:
        yield model


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = Rig(tmp_path / "journal.sqlite")
    async with made.stack:
        yield made
