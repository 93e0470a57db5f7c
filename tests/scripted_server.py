"""A real HTTP server whose answers a test writes down: one request a connection, one answer a request, in order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any

    @property
    def cursor(self) -> str | None:
        return self.headers.get("last-event-id")


class ScriptedServer:
    """`requests` is what was asked. A request beyond the script is answered 501, which no client repeats quietly."""

    def __init__(self, *script: Answer) -> None:
        self.url = ""
        self.requests: list[Request] = []
        self._script = list(script)
        self._open: set[asyncio.Task[None]] = set()

    @property
    def cursors(self) -> list[str | None]:
        return [request.cursor for request in self.requests]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.requests.append(await _read(reader))
            at = len(self.requests) - 1
            await (self._script[at] if at < len(self._script) else json_answer({}, 501))(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self.serve(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def close(self) -> None:
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)


@asynccontextmanager
async def serving(*script: Answer) -> AsyncIterator[ScriptedServer]:
    scripted = ScriptedServer(*script)
    server = await asyncio.start_server(scripted.accept, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    scripted.url = f"http://{host}:{port}"
    try:
        yield scripted
    finally:
        server.close()
        await scripted.close()


async def _read(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    url = urlsplit(target)
    return Request(method, url.path, dict(parse_qsl(url.query)), headers, json.loads(body) if body else None)


def head(status: int, kind: str, **headers: Any) -> bytes:
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nConnection: close\r\n{more}\r\n".encode()


def stream(*pieces: bytes, hang: bool = False, reset: bool = False) -> Answer:
    """A stream of `pieces` that then ends cleanly, hangs, or is reset."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(head(200, "text/event-stream; charset=utf-8"))
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if hang:
            await asyncio.Event().wait()
        if reset:
            writer.transport.abort()

    return answer


def json_answer(body: Any, status: int = 200, **headers: Any) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        kind = "application/json" if status < 400 else "application/problem+json"
        length = {} if status == 204 else {"Content-Length": len(data)}
        writer.write(head(status, kind, **length, **headers) + data)
        await writer.drain()

    return answer


def problem(status: int, code: str, **more: Any) -> Answer:
    headers = {"Retry_After": more.pop("retry_after")} if "retry_after" in more else {}
    return json_answer({"code": code, "detail": f"because of {code}", **more}, status, **headers)


async def dropped(writer: asyncio.StreamWriter) -> None:
    """The request was read; its answer never comes."""
    writer.transport.abort()


async def hanging(writer: asyncio.StreamWriter) -> None:
    """Nothing comes, and nothing ends."""
    await asyncio.Event().wait()


NO_CONTENT = json_answer(None, 204)
