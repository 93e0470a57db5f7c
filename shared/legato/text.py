"""Text that can be written as UTF-8: what to do with halves of surrogate pairs."""

from __future__ import annotations

import re
from typing import Final

from pydantic import JsonValue

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    """Joins surrogate pairs to the characters they stand for; an unpaired half becomes U+FFFD."""
    if text.isascii() or not _SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def clean_json(value: JsonValue) -> JsonValue:
    """The same for every string in `value`, keys too."""
    match value:
        case str():
            return clean(value)
        case list():
            return [clean_json(item) for item in value]
        case dict():
            return {clean(name): clean_json(item) for name, item in value.items()}
        case _:
            return value


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
