"""What a client sent is taken whole or refused with the field's path."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue, TypeAdapter

from legato.errors import Invalid, TooLarge
from legato.events import Event, TurnStarted
from legato.http import inputs
from legato.http.bodies import StartBody
from legato.http.message import Request
from legato.http.openapi import JSON
from legato.http.problems import Unserved
from legato.sse import MEDIA_TYPE

HEADERS = {"content-type": "application/json"}


def start(body: bytes, headers: dict[str, str] = HEADERS, limit: int = 10**6) -> StartBody:
    return inputs.document(Request("POST", "/", headers=headers, body=body), limit, StartBody)


@pytest.mark.parametrize(
    ("body", "path", "message"),
    [
        (b"", "body", "not valid JSON"),
        (b"{", "body", "not valid JSON"),
        (b'{"input":1} {}', "body", "not valid JSON"),
        (b'{"input":1}],[{"input":1}', "body", "not valid JSON"),
        (b"\xef\xbb\xbf{}", "body", "not valid JSON"),
        (b'{"input":"\xff"}', "body", "not UTF-8 at byte 10"),
        (b'{"input":"\\ud800"}', "body", "half of a surrogate"),
        (b'{"input":"\\udc00\\ud800"}', "body", "half of a surrogate"),
        (b'{"input":NaN}', "body", "NaN is no number"),
        (b'{"input":-Infinity}', "body", "-Infinity is no number"),
        (b'{"input":1e999}', "body", "too large for a number"),
        (b'{"input":' + b"1" * 5000 + b"}", "body", "not valid JSON"),
        (b'{"input":1,"input":2}', "body", "'input' is given twice"),
        (b'{"input":{"a":1,"b":1,"a":2}}', "body", "'a' is given twice"),
        (b'{"input":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "body", "nested deeper than 64"),
        (b'{"input":' + b"[" * 64 + b"]" * 64 + b"}", "body", "nested deeper than 64"),
        (b"[]", "body", "valid dictionary"),
        (b"{}", "input", "required"),
        (b'{"input":1,"more":2}', "more", "Extra inputs"),
        (b'{"input":1,"turn":"a b"}', "turn", "pattern"),
        (b'{"input":1,"turn":7}', "turn", "valid string"),
        (b'{"input":1,"turn":"a\\n"}', "turn", "pattern"),
        (b'{"input":1,"turn":""}', "turn", "pattern"),
        (b'{"input":1,"retry_of":"-a"}', "retry_of", "pattern"),
        (b'{"input":1,"if_active":"wait"}', "if_active", "'reject' or 'interrupt'"),
    ],
)
def test_a_body_that_is_not_whole_is_refused_with_its_field(body: bytes, path: str, message: str) -> None:
    with pytest.raises(Invalid, match=re.escape(message)) as refused:
        start(body)
    assert refused.value.path == path


def test_the_deepest_input_that_is_taken_can_be_journaled_and_read_back() -> None:
    body = start(b'{"input":' + b"[" * 63 + b"]" * 63 + b"}")
    record = Event(1, 1, "t1", 1, TurnStarted(input=body.input, agent="a")).encode()
    assert record.decode().payload == TurnStarted(input=body.input, agent="a")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(JSON_VALUES)
def test_every_json_value_is_a_valid_input(value: JsonValue) -> None:
    body = TypeAdapter(dict[str, JsonValue]).dump_json({"input": value})
    assert start(body).input == value


@pytest.mark.parametrize(
    ("headers", "limit"), [({"content-type": "application/json", "content-length": "99"}, 98), (HEADERS, 10)]
)
def test_a_body_above_the_limit_is_too_large_whether_it_says_so_or_not(headers: dict[str, str], limit: int) -> None:
    with pytest.raises(TooLarge):
        start(b'{"input":1}', headers, limit)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "text/plain"},
        {"content-type": "application/jsonp"},
        {"content-type": "application/json; charset=latin-1"},
        {"content-type": "application/json", "content-encoding": "gzip"},
    ],
)
def test_a_body_that_is_not_json_in_utf_8_is_unsupported(headers: dict[str, str]) -> None:
    with pytest.raises(Unserved) as refused:
        start(b'{"input":1}', headers)
    assert refused.value.status == 415


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON; charset=UTF-8", 'application/json;charset="utf-8"']
)
def test_json_in_utf_8_is_taken_however_it_is_written(kind: str) -> None:
    assert start(b'{"input":"\xc3\xa9"}', {"content-type": kind}).input == "é"


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", MEDIA_TYPE),
        ("*/*", MEDIA_TYPE),
        ("text/event-stream", MEDIA_TYPE),
        ("application/json", JSON),
        ("application/*", JSON),
        ("text/event-stream;q=0.4, application/json;q=0.5", JSON),
        ("text/event-stream; q=0, */*", JSON),
        ("text/html, application/xhtml+xml, */*;q=0.8", MEDIA_TYPE),
        ("application/json, text/event-stream", MEDIA_TYPE),
        ("TEXT/Event-Stream;charset=utf-8", MEDIA_TYPE),
    ],
)
def test_the_most_wanted_media_type_is_chosen(accept: str, kind: str) -> None:
    assert inputs.accepted(accept, (MEDIA_TYPE, JSON)) == kind


@pytest.mark.parametrize(
    "accept", ["text/html", "application/json;q=0", "*/*;q=0", "text/event-stream;q=0,text/*;q=0.000"]
)
def test_a_media_type_that_is_not_served_is_not_acceptable(accept: str) -> None:
    with pytest.raises(Unserved) as refused:
        inputs.accepted(accept, (MEDIA_TYPE, JSON))
    assert refused.value.status == 406


@pytest.mark.parametrize("accept", ["json", "application/json;q=2", "application/json;q=x", "a/b/c", "a b/c"])
def test_an_accept_header_that_cannot_be_read_is_invalid(accept: str) -> None:
    with pytest.raises(Invalid) as refused:
        inputs.accepted(accept, (MEDIA_TYPE, JSON))
    assert refused.value.path == "header.Accept"


@pytest.mark.parametrize("text", ["x=1", "after=1&x=2", "after=1&after=2", "=1"])
def test_a_query_field_that_is_unknown_or_repeated_is_invalid(text: str) -> None:
    with pytest.raises(Invalid, match=r"takes after|given twice"):
        inputs.query(text, frozenset({"after"}))


@pytest.mark.parametrize("text", ["-1", "abc", "", "1e9", "nan", "inf", "61", " 1", "٣", "1."])
def test_seconds_that_are_no_number_in_bounds_are_invalid(text: str) -> None:
    with pytest.raises(Invalid, match="expected seconds from 0 to 60") as refused:
        inputs.seconds({"wait": text}, "wait", 60)
    assert refused.value.path == "query.wait"


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("20", 20), ("0.25", 0.25), ("60", 60)])
def test_seconds_in_bounds_are_taken(text: str, value: float) -> None:
    assert inputs.seconds({"wait": text}, "wait", 60) == value


@pytest.mark.parametrize("text", ["0", "101", "-1", "1.5", "x", "", "٣"])
def test_a_whole_number_out_of_bounds_is_invalid(text: str) -> None:
    with pytest.raises(Invalid, match="expected a whole number from 1 to 100"):
        inputs.number({"limit": text}, "limit", 1, 100)


@pytest.mark.parametrize("value", ["", "-a", "a b", "a\n", "a\r\nX: y", "a/b", "é", "a" * 65, "٣"])
def test_an_id_out_of_pattern_is_invalid(value: str) -> None:
    with pytest.raises(Invalid) as refused:
        inputs.identifier(value, "session")
    assert refused.value.path == "session"
