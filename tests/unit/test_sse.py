"""Server-sent events: the case files, cut everywhere, and what the writer promises the reader."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato import sse
from legato.errors import FrameTooLarge
from legato.events import Cursor, Event, TextDelta
from legato.sse import Decoder, Message

CASES = [
    pytest.param(case, id=f"{path.stem}: {case['name']}")
    for path in sorted((Path(__file__).parents[1] / "cases" / "sse").glob("*.json"))
    for case in json.loads(path.read_text())
]


def wire(case: dict[str, Any]) -> bytes:
    return base64.b64decode(case["base64"]) if "base64" in case else case["input"].encode()


def decode(chunks: Iterable[bytes]) -> tuple[list[Message], Decoder]:
    decoder = Decoder()
    return [message for chunk in chunks for message in decoder.feed(chunk)], decoder


def check(case: dict[str, Any], chunks: Iterable[bytes]) -> None:
    decoder, messages, error = Decoder(case.get("max_bytes", sse.MAX_BYTES)), list[Message](), None
    try:
        for chunk in [*chunks, b""]:
            messages += decoder.feed(chunk)
    except FrameTooLarge as refused:
        error = refused.code
    assert [message._asdict() for message in messages] == case["messages"]
    assert (decoder.last_id, decoder.retry, error) == (case.get("last_id", ""), case.get("retry"), case.get("error"))


def cuts(data: bytes) -> Iterable[tuple[bytes, bytes]]:
    return ((data[:at], data[at:]) for at in range(len(data) + 1))


def event(text: str, seq: int = 1) -> Event:
    return Event(seq, 3, "t_9", 1796050000123, TextDelta(step=1, text=text))


@pytest.mark.parametrize("case", CASES)
def test_a_case_is_read_the_same_whole_byte_by_byte_and_cut_anywhere(case: dict[str, Any]) -> None:
    data = wire(case)
    check(case, [data])
    check(case, [bytes([byte]) for byte in data])
    for two in cuts(data):
        check(case, two)


def test_there_are_cases() -> None:
    """An empty directory of cases does not pass unseen."""
    assert len(CASES) > 50


@given(st.text(), st.data())
def test_a_frame_comes_back_as_it_was_written_whatever_its_text_and_cuts(text: str, data: st.DataObject) -> None:
    record = event(text, seq=128).encode()
    stream = sse.OPENING + sse.frame(record) + sse.PING
    at = data.draw(st.integers(0, len(stream)))
    messages, decoder = decode((stream[:at], stream[at:]))
    assert messages == [Message("text.delta", record.data, "3-128")]
    assert decoder.last_id == str(record.cursor)


@pytest.mark.parametrize("mark", ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1e", "\x85", "\u2028", "\u2029", "\0"])
def test_no_line_break_of_any_kind_leaves_a_writer_unescaped_where_a_reader_would_break(mark: str) -> None:
    text = f"a{mark}id: 9-9{mark}{mark}data: x"
    for written in (sse.frame(event(text).encode()), sse.control("note", {"text": text})):
        (message,) = decode([written])[0]
        assert json.loads(message.data)["text"] == text
        assert written.count(b"\n") - written.count(b"id: 3-1\n") == 3
        assert not {"\u2028", "\u2029", "\r"} & set(written.decode())


def test_a_frame_carries_its_cursor_its_type_and_its_line() -> None:
    record = event("Hel", seq=128).encode()
    assert sse.frame(record) == f"id: 3-128\nevent: text.delta\ndata: {record.data}\n\n".encode()


def test_a_frame_gives_its_line_back() -> None:
    record = event("\ndata: no field\n\n é").encode()
    assert sse.line(sse.frame(record)) == record.data


def test_a_control_frame_has_no_id_unless_it_stands_for_a_cursor() -> None:
    assert sse.control("stream.closing", {"reason": "slow"}) == b'event: stream.closing\ndata: {"reason":"slow"}\n\n'
    snapshot = sse.control("snapshot", {"cursor": "4-7"}, str(Cursor(4, 7)))
    assert snapshot == b'id: 4-7\nevent: snapshot\ndata: {"cursor":"4-7"}\n\n'


def test_the_opening_is_two_kilobytes_that_say_only_retry() -> None:
    messages, decoder = decode([sse.OPENING])
    assert messages == []
    assert decoder.retry == 1000
    assert len(sse.OPENING) > 4096


def test_a_huge_line_is_joined_once_however_small_its_pieces() -> None:
    """What a decoder holds of an unfinished line is the pieces themselves."""
    decoder = Decoder()
    pieces = [b"x" * 10 for _ in range(1000)]
    for piece in [b"data: ", *pieces]:
        decoder.feed(piece)
    assert decoder._line == [b"data: ", *pieces]
    assert decoder.feed(b"\n\n") == [Message("message", "x" * 10_000)]
