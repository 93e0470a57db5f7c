"""One worker of `legato dev`: the ASGI face on a port of its own, for exactly as long as its parent lives.

`python -m legato.dev.worker FD`: FD is one end of a socket pair. The worker says one line of JSON there, what it serves
or why it cannot; its parent says nothing, and when the other end is closed, by whatever death, the worker ends.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvicorn
import uvloop

from legato.app import App, build
from legato.errors import LegatoError
from legato.http.asgi import AsgiFace
from legato.http.sigterm import END_SECONDS
from legato.http.under_uvicorn import drain_under_uvicorn
from legato.settings import read_settings


async def serve(link: socket.socket) -> int:
    try:
        app = await _open()
    except Exception as wrong:
        _tell(link, {"error": _said(wrong)})
        return 2
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = _server(app)
        _when_closed(link, lambda: _end(app.settings.drain))
        _tell(link, {"port": listening.getsockname()[1], **_about(app)})
        await server.serve(sockets=[listening])
    await app.close()
    return 0


async def _open() -> App:
    app = build(read_settings())
    await app.journal.check()
    return app


def _server(app: App) -> uvicorn.Server:
    face = AsgiFace(lambda: app)
    drain_under_uvicorn(app.settings.drain, face)
    return uvicorn.Server(
        uvicorn.Config(face, lifespan="off", ws="none", access_log=False, log_config=None, timeout_graceful_shutdown=1)
    )


def _about(app: App) -> dict[str, Any]:
    told = ("journal", "agent", "auth", "lease", "drain")
    return {"instance": app.instance} | {name: getattr(app.settings, name) for name in told}


def _said(wrong: Exception) -> str:
    """One line; of what nobody raised on purpose, such as an agent's own mistake, also where it was."""
    text = " ".join(str(wrong).split())
    if isinstance(wrong, LegatoError):
        return text
    passed = traceback.extract_tb(wrong.__traceback__)
    last = next((frame for frame in reversed(passed) if not frame.filename.startswith("<frozen ")), passed[-1])
    where = "" if isinstance(wrong, SyntaxError) else f" ({last.filename}:{last.lineno})"  # which says it itself
    return f"{type(wrong).__name__}: {text}{where}"


def _tell(link: socket.socket, fields: dict[str, Any]) -> None:
    with suppress(OSError):  # the parent has given up already
        link.sendall(json.dumps(fields).encode() + b"\n")


def _when_closed(link: socket.socket, then: Callable[[], None]) -> None:
    """A thread, since it must see the end even while an agent blocks the event loop."""

    def watch() -> None:
        while link.recv(1):
            pass
        then()

    threading.Thread(target=watch, name="legato-parent", daemon=True).start()


def _end(drain: float) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(drain + END_SECONDS)
    os._exit(1)


def main() -> None:
    link = socket.socket(fileno=int(sys.argv[1]))
    link.set_inheritable(False)
    logging.basicConfig(level=logging.WARNING, format=f"worker {os.getpid()}: %(levelname)s %(name)s: %(message)s")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(serve(link)))


if __name__ == "__main__":
    main()
