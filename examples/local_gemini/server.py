"""The service itself: HTTP by hand, so that a test can say what becomes of every byte."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Self

from legato.errors import ModelFailed
from local_gemini.script import BrokenOff, Frame, Wrong, as_read, play, whole

PATH: Final = re.compile(r"/(v1|v1beta|v1beta1)/(?:[\w.:-]+/)*models/(?P<model>[\w.-]+):(?P<verb>\w+)(?:\?.*)?")
STATUS: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What becomes of one request in place of its script's whole answer.

    `frames` are said in place of the script. After `after` of them comes an error of `status`, or, where `cut`, the end
    of the connection: in the midst of the next frame where `torn`, as a well-formed end where `clean`. `status` with
    `after` 0 is the status of the response; `retry_delay` and `retry_after` say in it when to ask again, in seconds.
    `first_byte` is the seconds that pass before anything comes (`math.inf`: nothing ever does), and `piece` the bytes
    in which the body is sent.
    """

    frames: Sequence[Frame] | None = None
    after: int = 0
    status: int = 200
    cut: bool = False
    torn: bool = False
    clean: bool = False
    retry_delay: float | None = None
    retry_after: float | None = None
    first_byte: float = 0
    piece: int | None = None


@dataclass(slots=True)
class Seen:
    """A request as the service reads it, and what has become of it: `frames` were taken by the client, which `left` if
    it went before the end. `at` is when it came, by the loop's clock; `ended` is set when nothing more will be sent."""

    at: float
    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    frames: int = 0
    left: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class LocalGemini:
    """The service at `url`, while it is entered. `seen` are its requests, in order,
    and `connections` how many it has had. Where it `keeps` connections, each
    carries one request after the other; else it closes them, for clients that never do."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0, *, keeps: bool = False) -> None:
        self.seen: list[Seen] = []
        self.connections = 0
        self._keeps = keeps
        self._befalls: deque[Answer] = deque()
        self._came = asyncio.Condition()
        self._address = host, port
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        host, port = self._address
        return f"http://{host}:{port}"

    def befall(self, *answers: Answer) -> None:
        """The next requests are answered like this, one each; those after them by their scripts."""
        self._befalls.extend(answers)

    async def request(self, number: int) -> Seen:
        """The request of that number, the first being 0, when it has come."""
        async with self._came:
            await self._came.wait_for(lambda: len(self.seen) > number)
        return self.seen[number]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, *self._address, limit=64 * 1024 * 1024)
        host, port = self._server.sockets[0].getsockname()[:2]
        self._address = host, port
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._server.wait_closed()

    async def serve_forever(self) -> None:
        await self._server.serve_forever()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.create_task(self._connected(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=0)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                ahead: bytes | None = b""
                while ahead is not None:
                    ahead = await self._serve(reader, writer, ahead)
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ahead: bytes) -> bytes | None:
        """One request, of which `ahead` was read before. Gives what was read of the next one; None where the connection
        has ended."""
        path, headers = await _head(reader, ahead)
        body = as_read(json.loads(await reader.readexactly(int(headers.get("content-length", "0"))) or b"{}"))
        seen = Seen(asyncio.get_running_loop().time(), path, headers, body)
        async with self._came:
            self.seen.append(seen)
            self._came.notify_all()
        answer = self._befalls.popleft() if self._befalls else Answer()
        sending = asyncio.create_task(_Sending(writer, seen, answer, self._keeps).send())
        gone = asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
            seen.left = not sending.done() or isinstance(sending.exception(), ConnectionError)
        finally:
            for task in (sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)
            seen.ended.set()
        if not sending.cancelled():
            sending.result()
        if seen.left or writer.is_closing() or not self._keeps:
            return None
        return b"" if gone.cancelled() else gone.result()


class _Sending:
    """One response on its way."""

    def __init__(self, writer: asyncio.StreamWriter, seen: Seen, answer: Answer, keeps: bool) -> None:
        self._writer, self._seen, self._answer = writer, seen, answer
        self._connection = {} if keeps else {"Connection": "close"}
        self._begun = False

    async def send(self) -> None:
        answer = self._answer
        if answer.first_byte == math.inf:
            await asyncio.Event().wait()
        await asyncio.sleep(answer.first_byte)
        asked = PATH.fullmatch(self._seen.path)
        if asked is None or asked["verb"] not in ("generateContent", "streamGenerateContent"):
            await self._refuse(404, f"{self._seen.path} is not found")
        elif answer.status != 200 and not answer.after:
            await self._refuse(answer.status, f"refused with {answer.status}")
        elif asked["verb"] == "generateContent":
            await self._at_once(asked["model"])
        else:
            await self._stream(asked["model"])

    def _frames(self, model: str) -> AsyncIterator[Frame]:
        given = self._answer.frames
        return play(self._seen.body, model) if given is None else _written(given)

    async def _at_once(self, model: str) -> None:
        try:
            frames = [frame async for frame in self._frames(model)]
        except (Wrong, ModelFailed) as wrong:
            await self._refuse(400, str(wrong))
        except BrokenOff:
            self._writer.transport.abort()
        else:
            self._seen.frames = 1
            await self._respond(200, json.dumps(whole(frames)).encode())

    async def _stream(self, model: str) -> None:
        following: Frame = {}
        try:
            async for following in self._frames(model):
                if self._fails:
                    break
                await self._chunk(_sse(following))
                self._seen.frames += 1
        except (Wrong, ModelFailed) as wrong:
            await self._break(400, str(wrong))
        except BrokenOff:
            self._writer.transport.abort()
        else:
            await self._end(following)

    @property
    def _fails(self) -> bool:
        return (self._answer.cut or self._answer.status != 200) and self._seen.frames == self._answer.after

    async def _end(self, following: Frame) -> None:
        """The end of the stream, or what comes in its place and in that of the `following` frame."""
        if not self._fails:
            await self._chunk(b"")
        elif self._answer.status != 200:
            await self._break(self._answer.status, f"failed with {self._answer.status}")
        else:
            await self._cut(_sse(following))

    async def _cut(self, following: bytes) -> None:
        await self._begin()
        if self._answer.torn:
            await self._chunk(following[: len(following) // 2])
        if self._answer.clean:
            await self._chunk(b"")
        self._writer.close()

    async def _break(self, status: int, message: str) -> None:
        """An error: the response's own where nothing was sent yet, else one in its stream."""
        if not self._begun:
            await self._refuse(status, message)
        else:
            await self._chunk(_sse(self._error(status, message)))
            await self._chunk(b"")

    async def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            about = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}
            await self._write(_status_line(200, {**about, **self._connection}))

    async def _chunk(self, data: bytes) -> None:
        """A chunk of the body; an empty one ends it."""
        await self._begin()
        await self._write(b"%x\r\n%b\r\n" % (len(data), data))

    async def _write(self, data: bytes) -> None:
        size = self._answer.piece or len(data)
        for at in range(0, len(data), size):
            self._writer.write(data[at : at + size])
            await self._writer.drain()
            if self._answer.piece:
                await asyncio.sleep(0)

    async def _refuse(self, status: int, message: str) -> None:
        after = self._answer.retry_after
        more = {} if after is None else {"Retry-After": f"{after:g}"}
        await self._respond(status, json.dumps(self._error(status, message)).encode(), more)

    async def _respond(self, status: int, body: bytes, more: Mapping[str, str] | None = None) -> None:
        about = {"Content-Type": "application/json; charset=UTF-8", "Content-Length": str(len(body)), **(more or {})}
        await self._write(_status_line(status, {**about, **self._connection}) + body)

    def _error(self, status: int, message: str) -> Frame:
        delay = self._answer.retry_delay
        info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{delay}s"}
        details = {} if delay is None else {"details": [info]}
        return {"error": {"code": status, "message": message, "status": STATUS.get(status, "UNKNOWN"), **details}}


async def _written(frames: Sequence[Frame]) -> AsyncIterator[Frame]:
    for each in frames:
        yield each


async def _head(reader: asyncio.StreamReader, ahead: bytes) -> tuple[str, dict[str, str]]:
    """The path, and the headers by their names in lower case."""
    lines = (ahead + await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.split(": ", 1) for line in lines[1:] if line)
    return lines[0].split(" ")[1], {name.lower(): value for name, value in pairs}


def _status_line(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{name}: {headers[name]}" for name in headers)]
    return "\r\n".join([*lines, "", ""]).encode()


def _sse(frame: Frame) -> bytes:
    return b"data: %b\r\n\r\n" % json.dumps(frame, ensure_ascii=False).encode()
