"""What the two faces and the gateway's HTTP side hand each other: one request, one answer. No framework."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Body = bytes | AsyncGenerator[bytes, None]

STALLED: Final = 45.0
"""Seconds that a face waits for a client that neither sends nor takes anything: longer than a model is held back."""
ARRIVING: Final = 20.0
"""Seconds in which the whole body of a request has to be here, however it comes."""
DRAIN_BYTES: Final = 4 * 1024 * 1024
DRAIN_SECONDS: Final = 2.0
"""What a face still reads, and drops, of a body that was refused: closing a connection with unread bytes resets it, and
the reset can overtake the answer. Source: RFC 9112, 9.6."""


@dataclass(frozen=True, slots=True)
class Request:
    """`path` is decoded and relative to the mount, `query` as it came, `headers` have lower-case names.

    `body` is what `room` allowed to be read.
    """

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def declared(self) -> int:
        """The length of body that the client announces; 0 when it announces none."""
        length = self.headers.get("content-length", "")
        return int(length) if length.isdecimal() and len(length) < 16 else 0

    @property
    def bodied(self) -> bool:
        """A body comes with it."""
        return self.declared > 0 or "transfer-encoding" in self.headers

    def room(self, limit: int) -> int:
        """The bytes of body worth reading: one more than allowed shows that it is too large; none when it says so."""
        return 0 if self.method != "POST" or self.declared > limit else limit + 1


@dataclass(frozen=True, slots=True)
class Answer:
    """A body that is a generator is a stream; whoever sends it closes it."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Body = b""

    def plus(self, headers: Mapping[str, str]) -> Answer:
        return Answer(self.status, {**self.headers, **headers}, self.body)


def json_answer(
    status: int, value: Mapping[str, Any], headers: Mapping[str, str] | None = None, kind: str = "application/json"
) -> Answer:
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return Answer(status, {"Content-Type": kind, "Cache-Control": "no-store", **(headers or {})}, body)
