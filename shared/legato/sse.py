"""Server-sent events, both directions, as bytes: frames are written here and read back here. Pure.

Source: HTML standard, 9.2.5 "Parsing an event stream" and 9.2.6 "Interpreting an event stream".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pydantic_core import to_json

from legato.errors import FrameTooLarge
from legato.events import Record

MEDIA_TYPE: Final = "text/event-stream"
PING: Final = b": ping\n\n"
OPENING: Final = b"retry: 1000\n:" + b" " * 4096 + b"\n\n"
"""The first bytes of every stream; 4 KiB get through hops that hold back a small answer."""

MAX_BYTES: Final = 64 * 1024 * 1024
_BOM: Final = b"\xef\xbb\xbf"


def frame(record: Record) -> bytes:
    """One event as one frame; its `id` is its cursor."""
    return f"id: {record.epoch}-{record.seq}\nevent: {record.type}\ndata: {record.data}\n\n".encode()


def line(of: bytes) -> str:
    """The event's line of JSON in the frame that `frame` made of it."""
    return of[of.index(b"\ndata: ") + 7 : -2].decode()


def control(event: str, data: Mapping[str, Any], id: str | None = None) -> bytes:  # noqa: A002
    """A frame that is in no journal. Only `snapshot` has an `id`, the cursor it stands for."""
    text = to_json(data).replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
    head = f"id: {id}\nevent: {event}\ndata: " if id is not None else f"event: {event}\ndata: "
    return b"%b%b\n\n" % (head.encode(), text)


class Message(NamedTuple):
    """One dispatched frame. `id` is what this frame itself carried, None for a frame without; see `Decoder.last_id`."""

    event: str
    data: str
    id: str | None = None


class Decoder:
    """Bytes in, messages out, however the bytes are cut.

    `last_id` is the standard's last event ID: that of the last complete frame that carried one, "" before it.
    `retry` is the server's reconnection time in ms, None until it names one. `max_bytes` bounds a line and an event.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.last_id = ""
        self.retry: int | None = None
        self._max_bytes = max_bytes
        self._line: list[bytes] = []
        self._line_bytes = 0
        self._first_line = True
        self._messages: list[Message] = []
        self._failure: FrameTooLarge | None = None
        self._after_cr = False
        self._event = ""
        self._id: str | None = None
        self._data: list[str] = []
        self._event_bytes = 0

    def feed(self, chunk: bytes) -> list[Message]:
        """The messages that `chunk` completes. Raises FrameTooLarge, after the messages before it were given."""
        if self._failure:
            raise self._failure
        if self._after_cr and chunk:
            chunk, self._after_cr = chunk.removeprefix(b"\n"), False
        self._after_cr |= chunk.endswith(b"\r")
        try:
            for piece in chunk.splitlines(keepends=True):
                self._take(piece)
        except FrameTooLarge as failure:
            self._failure = failure
            if not self._messages:
                raise
        messages, self._messages = self._messages, []
        return messages

    def _take(self, piece: bytes) -> None:
        """A piece of a line, or the end of one: then the whole line is interpreted."""
        line = piece.rstrip(b"\r\n")
        self._line_bytes += len(line)
        if self._line_bytes > self._max_bytes:
            raise FrameTooLarge(f"a line of more than {self._max_bytes} bytes")
        self._line.append(line)
        if len(line) == len(piece):
            return
        whole, self._line, self._line_bytes = b"".join(self._line), [], 0
        if self._first_line:
            self._first_line, whole = False, whole.removeprefix(_BOM)
        if whole:
            self._interpret(whole)
        else:
            self._dispatch()

    def _interpret(self, line: bytes) -> None:
        name, _, value = line.decode(errors="replace").partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._add(value, len(line))
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "retry" and re.fullmatch(r"[0-9]{1,15}", value):
            self.retry = int(value)

    def _add(self, value: str, size: int) -> None:
        self._event_bytes += size
        if self._event_bytes > self._max_bytes:
            raise FrameTooLarge(f"an event of more than {self._max_bytes} bytes")
        self._data.append(value)

    def _dispatch(self) -> None:
        if self._id is not None:
            self.last_id = self._id
        if self._data:
            self._messages.append(Message(self._event or "message", "\n".join(self._data), self._id))
        self._event, self._id, self._data, self._event_bytes = "", None, [], 0
