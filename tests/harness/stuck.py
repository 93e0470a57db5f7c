"""A client that sends its request and does not read the answer, for as long as it likes."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPResponse, IncompleteRead
from typing import Any
from urllib.parse import urlsplit

from legato.sse import Decoder, Message


class Stuck:
    """`Bearer dev:ann` at one instance, with a small window: a few MB are in flight at most."""

    def __init__(self, url: str, method: str, path: str, body: Any = None) -> None:
        parts = urlsplit(url)
        content = b"" if body is None else json.dumps(body).encode()
        fields = ["Host: h", "Authorization: Bearer dev:ann", "Accept: text/event-stream", "Connection: close"]
        if content:
            fields += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        self._socket.connect((parts.hostname, parts.port))
        self._socket.sendall("\r\n".join([f"{method} {path} HTTP/1.1", *fields, "", ""]).encode() + content)

    def read_on(self, until: Callable[[Message], bool] = lambda _: False, timeout: float = 30) -> list[Message]:
        """Blocks: every frame up to one that fulfils `until`, or the end of the answer, clean or broken."""
        self._socket.settimeout(timeout)
        answer, decoder, frames = HTTPResponse(self._socket), Decoder(), list[Message]()
        answer.begin()
        with suppress(IncompleteRead):
            while piece := answer.read1(65536):
                for frame in decoder.feed(piece):
                    frames.append(frame)
                    if until(frame):
                        return frames
        return frames

    def close(self) -> None:
        self._socket.close()
