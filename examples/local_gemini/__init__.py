"""A Gemini on this machine: the vendor's wire format without a key, for the examples and the tests.

It plays what the user's text tells it to, as `legato.models.scripted` does, or frames that were written down; it
refuses what the real service refuses, and fails in the ways that the real one fails in where `befall` says so.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from local_gemini.script import Frame, Wrong
from local_gemini.server import Answer, LocalGemini, Seen

__all__ = ["Answer", "Frame", "LocalGemini", "Seen", "Wrong", "without_a_key"]


@asynccontextmanager
async def without_a_key() -> AsyncIterator[dict[str, str]]:
    """Where the environment has no key, what lets the vendor's SDK find a Gemini of this machine; else nothing."""
    if {"GEMINI_API_KEY", "GOOGLE_API_KEY"} & os.environ.keys():
        yield {}
        return
    async with LocalGemini() as local:
        print(f"No key in the environment: Gemini's wire format is spoken by {local.url}.")
        yield {"GOOGLE_API_KEY": "offline", "GOOGLE_GEMINI_BASE_URL": local.url}
