"""Names what blocks the event loop: a thread that sees the loop stand still and says in whose code it stands."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from types import FrameType

log = logging.getLogger("legato.watchdog")

BEAT_SECONDS = 0.25
STALL_SECONDS = 1.0


class Watchdog:
    """Watches the loop it is built in until `close`. A stall is reported once, within 2 s, and again when it ends."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._beat = time.monotonic()
        self._closed = threading.Event()
        self._tick()
        threading.Thread(target=self._watch, name="legato-watchdog", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def _tick(self) -> None:
        self._beat = time.monotonic()
        if not self._closed.is_set():
            self._loop.call_later(BEAT_SECONDS, self._tick)

    def _watch(self) -> None:
        stalled: float | None = None
        while not self._closed.wait(BEAT_SECONDS):
            beat = self._beat
            if stalled is None and time.monotonic() - beat > STALL_SECONDS:
                stalled = beat
                place = where(sys._current_frames().get(self._thread))
                log.error("the event loop is blocked by %s: use await there, or make the tool a plain def", place)
            elif stalled is not None and beat > stalled:
                log.error("the event loop went on after %.1f s", beat - stalled)
                stalled = None


def where(frame: FrameType | None) -> str:
    """The function that the loop stands in: the one that Legato, or the loop itself, called last."""
    inner = frame
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(("legato.", "asyncio.", "uvicorn.")):
            break
        inner, frame = frame, frame.f_back
    return _describe(inner) if inner else "an unknown place"


def _describe(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_qualname} ({code.co_filename}:{frame.f_lineno})"
