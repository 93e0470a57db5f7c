"""Who calls."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller: sessions live under `uid`. `expires_at`: how long it may read on what it opened (ms since 1970); None
    is for as long as it likes."""

    uid: str
    expires_at: int | None = None
