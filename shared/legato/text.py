"""Text and JSON that can be written down: what to do with halves of surrogate pairs, and what no journal can hold."""

from __future__ import annotations

import math
import re
from typing import Final

from pydantic import JsonValue

NESTING: Final = 100
"""Levels a call's arguments may have; parsers stop at 200, and an event wraps them in some of its own."""
BRIEF_CHARS: Final = 2000
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    """Joins surrogate pairs to the characters they stand for; an unpaired half becomes U+FFFD."""
    if text.isascii() or not _SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def brief(text: str) -> str:
    """`text` cleaned, and cut where it is longer than a message has to be."""
    said = clean(text)
    return said if len(said) <= BRIEF_CHARS else said[: BRIEF_CHARS - 1] + "…"


def words_of(error: BaseException) -> str:
    """What an error says; nothing where it cannot say it. Whatever is raised over that must not end the process."""
    try:
        return brief(str(error))
    except BaseException:
        return ""


def clean_json(value: object, levels: int = NESTING) -> JsonValue:
    """`value` with every string in it cleaned, names too. Raises ValueError when it is not JSON, or nested too deep."""
    match value:
        case str():
            return clean(value)
        case None | bool() | int():
            return value
        case float() if math.isfinite(value):
            return value
        case list() | dict() if levels == 0:
            raise ValueError(f"nested deeper than {NESTING} levels")
        case list():
            return [clean_json(item, levels - 1) for item in value]
        case dict() if all(isinstance(name, str) for name in value):
            return {clean(name): clean_json(item, levels - 1) for name, item in value.items()}
    raise ValueError(f"{value!r:.80} is not JSON")


class Surrogates:
    """A stream of text in chunks, cleaned: a pair that is split over two chunks comes out whole with the second."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, chunk: str) -> str:
        """What can be shown now: all but a high surrogate at the end, which waits for its other half."""
        text, self._held = self._held + chunk, ""
        if "\ud800" <= text[-1:] <= "\udbff":
            text, self._held = text[:-1], text[-1]
        return clean(text)

    def end(self) -> str:
        """What is left when no chunk follows."""
        text, self._held = clean(self._held), ""
        return text
