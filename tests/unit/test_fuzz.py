"""Whatever comes in, nothing crashes: what is no sense is refused in words, or taken for none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from legato.errors import FrameTooLarge
from legato.events import Cursor
from legato.http.api import ROUTES, handle
from legato.http.message import Answer, Request
from legato.http.seat import Seat
from legato.sse import Decoder, Message
from scripted_gateway import Stage

WIRE = st.binary(max_size=60) | st.sampled_from(
    [b"\r", b"\n", b"\r\n", b"\n\n", b"data", b":", b": ", b"id", b"event", b"retry", b"\xef\xbb\xbf", b"\0", b"1-1",
     b"\xf0\x9f"]
)  # fmt: skip
LATIN = st.text(st.characters(codec="latin-1"), max_size=30)
IDS = st.sampled_from(["s1", "t1", "1-1-1", "-", "a" * 65, "..", "%00", "a\r\nX: y"]) | st.text(min_size=1, max_size=20)
METHODS = st.sampled_from(["GET", "POST", "DELETE", "PUT", "HEAD", "OPTIONS", "get", ""]) | LATIN
HEADERS = {
    "authorization": st.sampled_from(["Bearer dev:ann", "Bearer", "Basic x"]) | LATIN,
    "accept": st.sampled_from(["text/event-stream", "application/json", "*/*;q=0", "a/b;q=9"]) | LATIN,
    "content-type": st.sampled_from(["application/json", "application/json; charset=utf-8", "text/plain"]) | LATIN,
    "content-encoding": st.sampled_from(["gzip", "identity"]),
    "content-length": st.sampled_from(["0", "5", "-1", "1e9", "9" * 30, "²"]) | LATIN,
    "transfer-encoding": st.sampled_from(["chunked", "gzip, chunked"]) | LATIN,
    "idempotency-key": st.sampled_from(["t1", ""]) | LATIN,
    "last-event-id": st.sampled_from(["1-1", "9-9", "1-", "\x00"]) | LATIN,
    "if-none-match": st.sampled_from(["*", '"3-7"', 'W/"3-7"', '"']) | LATIN,
    "origin": st.sampled_from(["https://app.example.com", "null"]) | LATIN,
    "access-control-request-method": st.sampled_from(["POST"]) | LATIN,
}
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(
        ("input", "turn", "agent", "if_active", "retry_of", "reason", "approved", "note", "stream", "value"),
        VALUES | st.sampled_from(["t1", "s1", "reject", "interrupt", True, False]),
    ),
)
NAMES = ["after", "from", "turn", "wait", "before", "limit", "x"]
QUERIES = (
    st.lists(st.builds("{}={}".format, st.sampled_from(NAMES), st.text("019-e.%ast&=+ ", max_size=8)), max_size=3).map(
        "&".join
    )
    | LATIN
)
BODIES = (FIELDS | VALUES).map(lambda value: json.dumps(value).encode()) | st.binary(max_size=60)


@st.composite
def paths(draw: st.DrawFn) -> str:
    template = draw(st.sampled_from([route.template for route in ROUTES]))
    return template.format_map({name: draw(IDS) for name in ("session", "turn", "request", "name")})


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Most are near to one that makes sense."""
    usual = {"authorization": "Bearer dev:ann", "content-type": "application/json"}
    headers = usual | draw(st.fixed_dictionaries({}, optional=HEADERS))
    path = draw(paths() | st.text(max_size=40))
    return Request(draw(METHODS), path, draw(QUERIES), headers, draw(st.just(b"") | BODIES))


@given(requests())
@settings(max_examples=400, deadline=None, derandomize=True, database=None)
def test_no_request_is_an_accident(request: Request) -> None:
    """Nor can anything of it get into the head of an answer as more than a value."""
    answer = asyncio.run(answered(request))
    assert answer.status < 500
    assert isinstance(answer.body, bytes)
    assert answer.status in {204, 304} or json.loads(answer.body) is not None
    for name, value in answer.headers.items():
        assert not {"\r", "\n", "\0"} & {*name, *value}
        value.encode("latin-1")


async def answered(request: Request) -> Answer:
    """A stream is read to its end, and is `{}` then."""
    answer = await handle(Stage(), request, Seat())
    if isinstance(answer.body, AsyncGenerator):
        assert [frame async for frame in answer.body] == [b"one", b"two"]
        return Answer(answer.status, answer.headers, b"{}")
    return answer


@given(st.lists(WIRE, max_size=20), st.data())
@settings(max_examples=300, deadline=None, derandomize=True, database=None)
def test_no_bytes_break_the_decoder_and_no_cut_changes_what_they_say(pieces: list[bytes], data: st.DataObject) -> None:
    wire = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=8)))
    whole, cut = Decoder(), Decoder()
    told = whole.feed(wire)
    assert told == [message for a, b in pairwise([0, *cuts, len(wire)]) for message in cut.feed(wire[a:b])]
    assert (whole.last_id, whole.retry) == (cut.last_id, cut.retry)


@given(st.lists(WIRE, max_size=30))
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
def test_a_line_or_an_event_that_is_too_large_is_the_only_thing_that_ends_a_decoder(pieces: list[bytes]) -> None:
    decoder, told = Decoder(max_bytes=20), list[Message]()
    try:
        for piece in pieces:
            told += decoder.feed(piece)
    except FrameTooLarge:
        pass
    assert all(len(message.data) <= 20 for message in told)


@given(st.text(max_size=40) | st.from_regex(r"[0-9]{1,20}-[0-9]{1,20}"))
@settings(max_examples=300, deadline=None, derandomize=True, database=None)
def test_any_text_is_a_cursor_or_none(text: str) -> None:
    cursor = Cursor.parse(text)
    assert cursor is None or Cursor.parse(str(cursor)) == cursor
