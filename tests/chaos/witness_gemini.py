"""The agent under observation with Gemini as its model, which it finds by the SDK's own settings."""

from __future__ import annotations

from chaos.witness import watching
from legato.models.gemini import Gemini

agent = watching(Gemini())
