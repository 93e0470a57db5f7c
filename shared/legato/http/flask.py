"""The Flask face: WSGI threads beside the core's event loop. For teams whose functions are Flask."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

import flask
from werkzeug.exceptions import HTTPException

from legato.errors import Draining, Invalid
from legato.http.api import Served, failed, handle
from legato.http.message import ARRIVING, DRAIN_BYTES, DRAIN_SECONDS, STALLED, Answer, Request
from legato.http.seat import Seat

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

AHEAD: Final = 64 * 1024
"""Bytes of frames that wait for the thread at most."""
PIECE: Final = 64 * 1024
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
DEAD_CORE: Final = 70
"""Exit status of a process whose core has died."""
T = TypeVar("T")
log = logging.getLogger("legato.http")


class FlaskFace:
    """The view over what `build` gives: `FACE(request)` in a function, or `blueprint(FACE)` in an application.

    It is built by the first request, in the process that serves it and on the core's own event loop.
    """

    def __init__(self, build: Callable[[], Served], arriving: float = ARRIVING) -> None:
        self._build = build
        self._arriving = arriving
        self._building = threading.Lock()
        self._served: Served | None = None
        self._draining = False
        self._core = Core()
        self._room: threading.Semaphore | None = None

    def __call__(self, request: flask.Request, path: str | None = None) -> flask.Response:
        """Answers `request`; `path` is its path below the mount."""
        _bound(request.environ)
        asked = _request(request, request.path if path is None else path)
        try:
            served = self._open()
            body = self._read(request, asked.room(served.settings.body_bytes) if asked.bodied else 0)
        except Exception as error:
            return self._response(failed(asked, error), request)
        seat = Seat(self._room)
        answer = self._core.run(handle(served, replace(asked, body=body), seat))
        if isinstance(answer.body, bytes):
            seat.leave()
        return self._response(answer, request, seat)

    def spare(self, threads: int) -> None:
        """Of the `threads` that there are, a quarter, 1 to 4, is kept from streams and long polls. Each of those holds
        one, and while they had all of them no other request would be answered."""
        self._room = threading.Semaphore(max(1, threads - min(4, max(1, threads // 4))))

    def drain(self) -> Future[None]:
        """Lets go of every turn and stream before the process ends; what was not opened by now is not any more."""
        with self._building:
            self._draining, served = True, self._served
        if served is not None:
            return asyncio.run_coroutine_threadsafe(served.drain(), self._core.loop)
        nothing: Future[None] = Future()
        nothing.set_result(None)
        return nothing

    def close(self) -> None:
        """Closes what was opened and ends the core's thread."""
        served, self._served = self._served, None
        if served is not None:
            self._core.run(served.close())
        self._core.stop()

    def _read(self, request: flask.Request, room: int) -> bytes:
        """At most `room` bytes. What is not here in time breaks off: a thread waits for it."""
        if not room:
            return b""
        late = self._core.later(self._arriving, lambda: _cut(request.environ))
        try:
            return request.stream.read(room)
        except Exception as broken:  # a server has errors of its own for a body that is no body
            raise Invalid("body", "the body broke off") from broken
        finally:
            late.cancel()

    def _open(self) -> Served:
        with self._building:
            if self._served is None:
                if self._draining:
                    raise Draining("this instance is about to end")
                self._served = self._core.run(_called(self._build))
            return self._served

    def _response(self, answer: Answer, request: flask.Request, seat: Seat | None = None) -> flask.Response:
        """Always an iterator: whoever holds a plain body reads the rest of a request that was refused for its size."""
        headers = dict(answer.headers)
        if isinstance(answer.body, bytes):
            parts: Iterator[bytes] = _drained(answer.body, request.environ, _rest(request))
            if answer.status not in (204, 304):
                headers["Content-Length"] = str(len(answer.body))
        else:
            parts = Handover(answer.body, self._core.loop, seat)
        response = flask.Response(parts, answer.status, direct_passthrough=True)
        response.headers.clear()
        response.headers.update(headers)
        return response


def blueprint(face: FlaskFace, name: str = "legato") -> flask.Blueprint:
    """`app.register_blueprint(blueprint(FlaskFace(build)), url_prefix="/api/agent")`."""
    made = flask.Blueprint(name, __name__)
    made.add_url_rule(
        "/<path:path>",
        view_func=lambda path: face(flask.request, f"/{path}"),
        endpoint="gateway",
        methods=METHODS,
        provide_automatic_options=False,
    )
    return made


class Core:
    """The event loop on which everything but HTTP runs: a thread of its own, started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ended = asyncio.Event()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                ready: Future[asyncio.AbstractEventLoop] = Future()
                self._thread = threading.Thread(target=self._main, args=[ready], name="legato-core", daemon=True)
                self._thread.start()
                self._loop = ready.result()
            return self._loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` on the loop while this thread waits for its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def later(self, seconds: float, call: Callable[[], None]) -> Future[None]:
        """Calls `call` on the loop, unless what this gives is cancelled before."""

        async def wait() -> None:
            await asyncio.sleep(seconds)
            call()

        return asyncio.run_coroutine_threadsafe(wait(), self.loop)

    def stop(self) -> None:
        """Cancels what runs on the loop and ends it."""
        if self._loop and self._thread:
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join()

    def _main(self, ready: Future[asyncio.AbstractEventLoop]) -> None:
        """A core that dies takes its process along, so that the server starts another: without it every request fails.
        An agent's own task that raises SystemExit ends a loop."""
        try:
            asyncio.run(self._live(ready))
        except BaseException:
            log.critical("the event loop has ended; so does this process", exc_info=True)
            os._exit(DEAD_CORE)

    async def _live(self, ready: Future[asyncio.AbstractEventLoop]) -> None:
        ready.set_result(asyncio.get_running_loop())
        await self._ended.wait()


class Handover(Iterator[bytes]):
    """A stream's frames, carried from the core's loop to the one thread that iterates over them.

    The thread gets all that is ready in one piece. The producer waits while `AHEAD` bytes lie here, and is cancelled
    when the thread closes the iterator. Each counter has one writer, so no lock is taken for a frame.
    """

    def __init__(
        self, frames: AsyncGenerator[bytes, None], loop: asyncio.AbstractEventLoop, seat: Seat | None = None
    ) -> None:
        self._loop, self._seat = loop, seat
        self._ready: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._put = self._taken = 0
        self._room: asyncio.Future[None] | None = None
        self._carrying = asyncio.run_coroutine_threadsafe(self._carry(frames), loop)

    def __next__(self) -> bytes:
        part = self._ready.get()
        parts: list[bytes] = []
        while part is not None:
            parts.append(part)
            if self._ready.empty():
                break
            part = self._ready.get()
        if part is None:
            self._ready.put(None)
        if not parts:
            raise StopIteration
        return self._take(b"".join(parts))

    def close(self) -> None:
        self._carrying.cancel()
        if self._seat:
            self._seat.leave()

    def _take(self, parts: bytes) -> bytes:
        self._taken += len(parts)
        if self._room is not None:
            self._loop.call_soon_threadsafe(self._make_room)
        return parts

    async def _carry(self, frames: AsyncGenerator[bytes, None]) -> None:
        try:
            async with aclosing(frames):
                async for frame in frames:
                    self._ready.put(frame)
                    self._put += len(frame)
                    while self._put - self._taken >= AHEAD:
                        await self._wait_for_room()
        finally:
            self._ready.put(None)

    async def _wait_for_room(self) -> None:
        """The thread looks for a waiter after it has counted; so this looks at its count after it has become one."""
        self._room = self._loop.create_future()
        if self._put - self._taken >= AHEAD:
            await self._room
        self._room = None

    def _make_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)


async def _called(build: Callable[[], T]) -> T:
    return build()


def _bound(environ: WSGIEnvironment, seconds: float = STALLED) -> None:
    """Without this a client that stops reading would hold its thread for ever. The server resets it afterwards."""
    connection = environ.get("gunicorn.socket")
    if connection is not None:
        connection.settimeout(seconds)


def _rest(request: flask.Request) -> IO[bytes]:
    """What was not read of the body; empty where it is larger than the application itself allows."""
    try:
        return request.stream
    except HTTPException:
        return io.BytesIO()


def _drained(answer: bytes, environ: WSGIEnvironment, rest: IO[bytes]) -> Iterator[bytes]:
    """The answer, and behind it whatever there is of `rest`, dropped in bounds."""
    yield answer
    until, left = time.monotonic() + DRAIN_SECONDS, DRAIN_BYTES
    with suppress(Exception):
        while left > 0 and (seconds := until - time.monotonic()) > 0:
            _bound(environ, seconds)
            piece = rest.read(min(left, PIECE))
            left -= len(piece)
            if not piece:
                break
    _bound(environ)


def _request(request: flask.Request, path: str) -> Request:
    headers = {name.lower(): value for name, value in request.headers.items()}
    return Request(request.method, path, request.query_string.decode("latin-1"), headers)


def _cut(environ: WSGIEnvironment) -> None:
    """Ends what comes from the client, and nothing that goes to it."""
    connection = environ.get("gunicorn.socket")
    if connection is not None:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RD)
