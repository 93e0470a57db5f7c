"""What a Flask function needs of gunicorn's worker with threads, which serves it."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from types import FrameType
from typing import Any, Final

from gunicorn.workers.gthread import TConn, ThreadWorker

from legato.http.flask import FlaskFace
from legato.http.sigterm import bound_the_end

HEAD_SECONDS: Final = 10.0
"""In which a whole request line and headers have to be here, however they come: a thread waits for them."""


def spare_under_gthread(face: FlaskFace) -> None:
    """In a worker that this process becomes, streams, long polls and heads that do not come leave threads to others.

    Call this before the server starts, which alone knows how many threads there will be.
    """
    _bound_heads()
    begin = ThreadWorker.init_process

    def init_process(worker: ThreadWorker) -> None:
        face.spare(worker.cfg.threads)
        begin(worker)

    ThreadWorker.init_process = init_process


def drain_under_gthread(seconds: float, face: FlaskFace) -> None:
    """A worker that this process becomes drains `face` at SIGTERM, `seconds` for the turns and a little more.

    It serves on meanwhile. Call this before the server starts: it wraps gunicorn's own handler, which overwrites any
    that is installed before.
    """
    end = ThreadWorker.handle_exit

    def handle_exit(worker: ThreadWorker, sig: int, frame: FrameType | None) -> None:
        bound_the_end(seconds)
        worker.cfg.set("keepalive", 0)  # it would wait for each connection to be used once more
        face.drain().add_done_callback(lambda _: end(worker, sig, frame))

    ThreadWorker.handle_exit = handle_exit


def _bound_heads() -> None:
    """Gunicorn itself waits for a head for ever, from the first to the second of the methods that are wrapped here. The
    third is called every second, in a thread of its own."""
    begin, arrived, look = TConn.init, ThreadWorker.handle_request, ThreadWorker.murder_pending
    awaited: dict[TConn, float] = {}

    def init(connection: TConn) -> None:
        awaited[connection] = time.monotonic() + HEAD_SECONDS
        begin(connection)

    def handle_request(worker: ThreadWorker, request: Any, connection: TConn) -> Any:
        awaited.pop(connection, None)
        return arrived(worker, request, connection)

    def murder_pending(worker: ThreadWorker) -> None:
        for connection, until in [*awaited.items()]:
            if until < time.monotonic():
                awaited.pop(connection, None)
                with suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)
        look(worker)

    TConn.init, ThreadWorker.handle_request, ThreadWorker.murder_pending = init, handle_request, murder_pending
