"""What turns leave for later turns of their session: a private document for each that completed, the newest few."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue, TypeAdapter
from pydantic_core import to_json

from legato.engine.records import Origin
from legato.engine.runtime import Runtime, persist
from legato.errors import Refused
from legato.journal import Private, SessionKey
from legato.text import clean_json

SHELF: Final = "-"
"""Where they stand in place of a turn's id, which it can never be: one read gives them all."""
KEPT_BYTES: Final = 1024 * 1024
"""It has to fit the Commit of its turn's end."""


@dataclass(frozen=True, slots=True)
class _Left:
    """By `turn`; named by that turn's first seq, so that names sort as turns came."""

    turn: str
    value: JsonValue


_LEFT: Final = TypeAdapter(_Left)


class Kept:
    """What one turn finds, and what it leaves."""

    def __init__(self, runtime: Runtime, key: SessionKey, turn: str, origin: Origin) -> None:
        self._runtime, self._key, self._turn, self._origin = runtime, key, turn, origin
        self._gone: list[str] = []
        self._text: str | None = None

    async def read(self, limit: int) -> list[JsonValue]:
        """The newest `limit`, oldest first, without that of the turn which this one tries again."""
        texts = await persist(self._runtime.journal.private, self._key, SHELF, self._runtime.clock())
        left = {name: _LEFT.validate_json(texts[name]) for name in sorted(texts)}
        replaced = [name for name, each in left.items() if each.turn == self._origin.retry_of]
        standing = [name for name in left if name not in replaced]
        given = standing[-limit:] if limit else []
        # With this turn's own there will be `limit` again.
        self._gone = replaced + standing[: max(0, len(standing) - limit + 1)]
        return [left[name].value for name in given]

    def keep(self, value: JsonValue) -> None:
        """Raises Refused (`bad_result`, `result_too_large`)."""
        try:
            left = _Left(self._turn, clean_json(value))
        except ValueError as wrong:
            raise Refused("bad_result", f"turn.keep: what is kept is recorded as JSON: {wrong}") from None
        text = to_json(left)
        if len(text) > KEPT_BYTES:
            raise Refused("result_too_large", f"turn.keep: {len(text)} bytes of JSON, at most {KEPT_BYTES} fit")
        self._text = text.decode()

    def documents(self) -> tuple[Private, ...]:
        """For the Commit with which the turn completes."""
        if self._text is None:
            return ()
        expires_at = self._runtime.clock() + self._runtime.retention_ms
        gone = (Private(SHELF, name, None, expires_at) for name in self._gone)
        return (*gone, Private(SHELF, f"{self._origin.first:012d}", self._text, expires_at))
