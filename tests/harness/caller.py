"""One principal's requests, raw: streams are read frame by frame and can be dropped at any of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx

from harness.documented import undocumented
from legato.events import TERMINAL
from legato.sse import Decoder, Message


class Answer:
    """An answer that is being read. `messages` are the frames so far; `broken` tells an EOF in mid-answer."""

    def __init__(self, response: httpx.Response) -> None:
        self.status, self.headers = response.status_code, response.headers
        self.messages: list[Message] = []
        self.raw = bytearray()
        self.broken = False
        self._response = response
        self._frames = self._read()

    async def _read(self) -> AsyncIterator[Message]:
        decoder = Decoder()
        try:
            async for chunk in self._response.aiter_raw():
                self.raw += chunk
                for message in decoder.feed(chunk):
                    yield message
        except (httpx.RemoteProtocolError, httpx.ReadError):
            self.broken = True

    async def next(self, timeout: float = 30) -> Message:
        """The next frame. Raises EOFError at the end, TimeoutError."""
        async with asyncio.timeout(timeout):
            message = await anext(self._frames, None)
        if message is None:
            raise EOFError(f"{'broken off' if self.broken else 'ended'} after {len(self.messages)} frames")
        self.messages.append(message)
        return message

    async def until(self, condition: Callable[[Message], bool] | str, timeout: float = 30) -> list[Message]:
        """All frames so far, once one fulfils `condition` (or is of that event type). Raises EOFError, TimeoutError."""
        holds = (lambda message: message.event == condition) if isinstance(condition, str) else condition
        async with asyncio.timeout(timeout):
            while not holds(await self.next(timeout)):
                pass
        return self.messages

    async def rest(self, timeout: float = 30) -> list[Message]:
        """All frames up to the end, clean or broken. Raises TimeoutError."""
        with contextlib.suppress(EOFError):
            await self.until(lambda _: False, timeout)
        return self.messages

    @property
    def events(self) -> list[dict[str, Any]]:
        """The journal's events among the frames, parsed; snapshots and control frames are left out."""
        return [json.loads(m.data) for m in self.messages if m.id is not None and m.event != "snapshot"]

    @property
    def cursor(self) -> str | None:
        return next((message.id for message in reversed(self.messages) if message.id is not None), None)

    @property
    def ended(self) -> bool:
        return any(message.event in TERMINAL for message in self.messages)

    @property
    def text(self) -> str:
        """The words shown, in the order they came."""
        return "".join(event["text"] for event in self.events if event["type"] == "text.delta")

    async def json(self) -> Any:
        return json.loads(await self._response.aread())


def is_documented(response: httpx.Response) -> None:
    """Of an instance's own answers; a hop has its own."""
    if "legato-instance" in response.headers:
        asked, kind = response.request, response.headers.get("content-type", "")
        body = response.content if response.is_stream_consumed else None
        assert not (wrong := undocumented(asked.method, asked.url.path, response.status_code, kind, body)), wrong


Opening = AbstractAsyncContextManager[Answer]


class Caller:
    """`Bearer dev:{name}`, or another `token`, at one instance. Every request has a connection of its own and no
    retries."""

    def __init__(self, url: str, name: str = "ann", token: str | None = None) -> None:
        self.url = url
        self._headers = {"Authorization": f"Bearer {token or f'dev:{name}'}"}

    @asynccontextmanager
    async def open(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
        timeout: float = 60,
    ) -> AsyncIterator[Answer]:
        """A request whose answer is read inside; leaving drops the connection wherever it is. `timeout` is silence."""
        async with (
            httpx.AsyncClient(base_url=self.url, trust_env=False, verify=False, timeout=timeout) as http,
            http.stream(
                method, path, json=body, params=params, headers={**self._headers, **(headers or {})}
            ) as response,
        ):
            is_documented(response)
            yield Answer(response)

    def start(self, session: str, input: Any, turn: str | None = None, **fields: Any) -> Opening:  # noqa: A002
        """`POST .../turns` as a stream."""
        body = {"input": input, **({"turn": turn} if turn else {}), **fields}
        return self.open("POST", f"/v1/sessions/{session}/turns", body=body, headers={"Accept": "text/event-stream"})

    def events(self, session: str, after: str | None = None, **params: str) -> Opening:
        """`GET .../events` as a stream, from the cursor `after`."""
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": after} if after else {})}
        return self.open("GET", f"/v1/sessions/{session}/events", headers=headers, params=params)

    async def request(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        """A whole answer. Header names are written with underscores."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with httpx.AsyncClient(base_url=self.url, trust_env=False, verify=False, timeout=60) as http:
            response = await http.request(method, path, json=body, headers={**self._headers, **named})
        is_documented(response)
        return response

    async def begin(self, session: str, input: Any, turn: str | None = None, **fields: Any) -> httpx.Response:  # noqa: A002
        """`POST .../turns` without a stream: 202 with the turn."""
        body = {"input": input, **({"turn": turn} if turn else {}), **fields}
        return await self.request("POST", f"/v1/sessions/{session}/turns", body, Accept="application/json")

    async def cancel(self, session: str, turn: str, reason: str | None = None) -> httpx.Response:
        body = {"reason": reason} if reason else {}
        return await self.request("POST", f"/v1/sessions/{session}/turns/{turn}/cancel", body)

    async def decide(self, session: str, turn: str, request: str, approved: bool, **fields: Any) -> httpx.Response:
        body = {"approved": approved, **fields}
        return await self.request("POST", f"/v1/sessions/{session}/turns/{turn}/approvals/{request}", body)

    async def supply(self, session: str, turn: str, name: str, value: str, **fields: Any) -> httpx.Response:
        body = {"value": value, **fields}
        return await self.request("POST", f"/v1/sessions/{session}/turns/{turn}/credentials/{name}", body)

    async def snapshot(self, session: str) -> httpx.Response:
        return await self.request("GET", f"/v1/sessions/{session}")
