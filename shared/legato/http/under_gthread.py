"""What a Flask function needs of gunicorn's worker with threads, which serves it."""

from __future__ import annotations

from types import FrameType

from gunicorn.workers.gthread import ThreadWorker

from legato.http.flask import FlaskFace
from legato.http.sigterm import bound_the_end


def spare_under_gthread(face: FlaskFace) -> None:
    """In a worker that this process becomes, streams and long polls leave threads to other requests.

    Call this before the server starts, which alone knows how many threads there will be.
    """
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
