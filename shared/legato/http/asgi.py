"""The ASGI face: a whole application, or mounted as a sub-application under any path."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any, Generic, TypeVar

from legato.errors import Draining, Invalid
from legato.http.api import Served, failed, handle
from legato.http.message import ARRIVING, DRAIN_BYTES, DRAIN_SECONDS, STALLED, Answer, Request
from legato.http.seat import Seat

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
S = TypeVar("S", bound=Served)


class AsgiFace(Generic[S]):
    """The ASGI application over what `build` gives: `app.mount("/api/agent", AsgiFace(build))`. Source: ASGI 3.0, HTTP.

    It is built by the first request, in the process and the event loop that serve it. `handle` answers a request.
    """

    def __init__(
        self,
        build: Callable[[], S],
        stalled: float = STALLED,
        arriving: float = ARRIVING,
        handle: Callable[[S, Request, Seat], Awaitable[Answer]] = handle,
    ) -> None:
        self._build = build
        self._handle = handle
        self._stalled, self._arriving = stalled, arriving
        self._served: S | None = None
        self._draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        else:
            await send({"type": "websocket.close"})

    async def drain(self) -> None:
        """Lets go of every turn and stream before the process ends; what was not opened by now is not any more."""
        self._draining = True
        if self._served is not None:
            await self._served.drain()

    async def close(self) -> None:
        """Closes what was opened; for an application that mounts this one, which is told of no end."""
        served, self._served = self._served, None
        if served is not None:
            await served.close()

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = _request(scope)
        incoming = Incoming(receive, request.bodied)
        try:
            served = self._open()
        except Exception as error:
            await self._send(failed(request, error), incoming, send)
            return
        try:
            body = await incoming.read(request.room(served.settings.body_bytes), self._arriving)
        except Invalid as broken:
            await self._send(failed(request, broken), incoming, send)
            return
        if body is not None:
            with Seat() as seat:
                await self._send(await self._handle(served, replace(request, body=body), seat), incoming, send)

    def _open(self) -> S:
        if self._served is None:
            if self._draining:
                raise Draining("this instance is about to end")
            self._served = self._build()
        return self._served

    async def _send(self, answer: Answer, incoming: Incoming, send: Send) -> None:
        start = {"type": "http.response.start", "status": answer.status, "headers": _headers(answer)}
        if isinstance(answer.body, bytes):
            await send(start)
            await send({"type": "http.response.body", "body": answer.body, "more_body": incoming.left})
            if incoming.left:
                await incoming.drain()
                await send({"type": "http.response.body", "body": b""})
            return
        async with aclosing(answer.body) as frames:
            await send(start)
            if await _Pump(frames, send, self._stalled).run(incoming.receive):
                await send({"type": "http.response.body", "body": b""})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.close()
        await send({"type": "lifespan.shutdown.complete"})


def _request(scope: Scope) -> Request:
    path, root = scope["path"], scope.get("root_path", "").rstrip("/")
    if root and (path == root or path.startswith(root + "/")):
        path = path[len(root) :]
    headers: dict[str, str] = {}
    for raw, value in scope["headers"]:
        name = raw.decode("latin-1").lower()
        text = value.decode("latin-1")
        headers[name] = f"{headers[name]}, {text}" if name in headers else text
    return Request(scope["method"], path, scope["query_string"].decode("latin-1"), headers)


def _headers(answer: Answer) -> list[tuple[bytes, bytes]]:
    headers = dict(answer.headers)
    if isinstance(answer.body, bytes) and answer.status not in (204, 304):
        headers["Content-Length"] = str(len(answer.body))
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


class Incoming:
    """A request's body; `left` when it was announced and not read to its end."""

    def __init__(self, receive: Receive, announced: bool) -> None:
        self.receive = receive
        self._announced = announced
        self._ended = False

    @property
    def left(self) -> bool:
        return self._announced and not self._ended

    async def read(self, room: int, arriving: float) -> bytes | None:
        """At most about `room` bytes; None when the client left while it sent them.

        Raises Invalid when it is not here in `arriving` seconds.
        """
        body = bytearray()
        try:
            async with asyncio.timeout(arriving):
                while len(body) < room and not self._ended:
                    message = await self.receive()
                    if message["type"] == "http.disconnect":
                        return None
                    body += self._piece(message)
        except TimeoutError:
            raise Invalid("body", "the body broke off") from None
        return bytes(body)

    async def drain(self) -> None:
        """Drops what is left, in bounds."""
        room = DRAIN_BYTES
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while room > 0 and not self._ended:
                    room -= len(self._piece(await self.receive()))

    def _piece(self, message: Message) -> bytes:
        self._ended = not message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        return piece


class _Pump:
    """Carries one stream's frames to its client until they end, the client leaves, or it takes nothing for too long."""

    def __init__(self, frames: AsyncGenerator[bytes, None], send: Send, stalled: float) -> None:
        self._frames, self._send, self._stalled = frames, send, stalled
        self._sending = False
        self._sent = 0
        self._looked = -1

    async def run(self, receive: Receive) -> bool:
        """True when the stream came to its end."""
        tasks = {carrying := asyncio.create_task(self._carry()), asyncio.create_task(_left(receive))}
        try:
            while not (await asyncio.wait(tasks, timeout=self._stalled, return_when=asyncio.FIRST_COMPLETED))[0]:
                if self._stuck():
                    break
            return carrying.done() and carrying.exception() is None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _carry(self) -> None:
        async for frame in self._frames:
            self._sending = True
            await self._send({"type": "http.response.body", "body": frame, "more_body": True})
            self._sending = False
            self._sent += 1

    def _stuck(self) -> bool:
        """Whether one and the same frame was being sent at the last look and at this one."""
        stuck, self._looked = self._sending and self._looked == self._sent, self._sent
        return stuck


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
