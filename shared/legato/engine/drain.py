"""How an instance lets go of its turns before it ends: those that can, end; all others go on elsewhere."""

from __future__ import annotations

from typing import Final

from legato.engine.run import Engine

RELEASE_SECONDS: Final = 0.7
"""How long handing a turn back may take before its readers are sent away all the same."""
LAST_SECONDS: Final = 0.4
"""How long is waited then for `once` tools that still run, and for a journal that does not answer."""


async def drain(engine: Engine, seconds: float) -> None:
    """The turns of an engine that is `draining`: those that end within `seconds` end, every other is handed back.

    Returns when nothing runs here any more, RELEASE_SECONDS + LAST_SECONDS later at the latest. What is left by then
    keeps its lease, which is left to expire.
    """
    await engine.rest(seconds)
    _hand_back(engine)
    await engine.rest(RELEASE_SECONDS)
    _hand_back(engine)  # what was being started meanwhile
    for live in engine.live.values():
        live.writer.feed.close("draining")
    await engine.rest(LAST_SECONDS)


def _hand_back(engine: Engine) -> None:
    for live in engine.live.values():
        live.hand_back()
