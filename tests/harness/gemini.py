"""The environment in which a server's Gemini is the one on this machine."""

from __future__ import annotations

from collections.abc import Mapping


def gemini_at(url: str) -> Mapping[str, str]:
    """What the vendor's SDK reads."""
    return {"GOOGLE_API_KEY": "k", "GOOGLE_GEMINI_BASE_URL": url, "GOOGLE_GENAI_USE_VERTEXAI": "false"}
