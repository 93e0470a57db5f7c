"""The demo agent with Gemini as its model, which it finds by the SDK's own settings."""

from __future__ import annotations

from dataclasses import replace

from legato import demo
from legato.models.gemini import Gemini

agent = replace(demo.agent, model=Gemini())
