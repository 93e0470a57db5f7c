"""Draining under uvicorn, whether it was started by itself or as a worker of gunicorn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import FrameType
from typing import Any

import uvicorn

from legato.http.asgi import AsgiFace
from legato.http.sigterm import bound_the_end


def drain_under_uvicorn(seconds: float, *faces: AsgiFace[Any]) -> None:
    """Every uvicorn server of this process drains `faces` when a signal ends it, `seconds` for turns and a little more.

    It serves on meanwhile. Call this before the server starts: it takes the place of uvicorn's own handler, which
    overwrites any that is installed before.
    """

    def handle_exit(server: uvicorn.Server, sig: int, frame: FrameType | None) -> None:
        bound_the_end(seconds)
        drained = asyncio.run_coroutine_threadsafe(_drained(faces), asyncio.get_running_loop())
        drained.add_done_callback(lambda _: setattr(server, "should_exit", True))

    setattr(uvicorn.Server, "handle_exit", handle_exit)  # noqa: B010 - its type is a method's


async def _drained(faces: Sequence[AsgiFace[Any]]) -> None:
    await asyncio.gather(*(face.drain() for face in faces))
