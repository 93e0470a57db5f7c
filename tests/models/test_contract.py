"""The contract, by each model: scripted, and Gemini over its wire, by AI Studio and by Vertex AI."""

from __future__ import annotations

import pytest

from legato.models import Model
from legato.models.gemini import Gemini
from legato.models.scripted import ScriptedModel
from models.contract import ModelContract


class TestScripted(ModelContract):
    @pytest.fixture
    def model(self) -> Model:
        return ScriptedModel()


class TestGemini(ModelContract):
    @pytest.fixture
    def model(self, gemini: Gemini) -> Model:
        return gemini
