"""Events and cursors: one line of JSON each, the same after every trip."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from legato import events
from legato.events import Cursor, Event, Payload, Record, Unknown, join, split

BREAKS = ["\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
AWKWARD = [
    *BREAKS,
    "\0",
    "\ufeff",
    "\U0001f469\u200d\U0001f680",
    'data: "x"\n\nid: 9-9',
    "],\n[",
    '",\n"',
    "\\u2028",
    "\\",
]
texts = st.lists(st.one_of(st.text(), st.sampled_from(AWKWARD)), max_size=6).map("".join)
ids = st.from_regex(rf"\A{events.ID_PATTERN}\Z")
numbers = st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
payloads: st.SearchStrategy[Payload] = st.one_of(
    st.builds(events.TurnStarted, input=json_values, agent=texts),
    st.builds(events.TextDelta, step=st.integers(0, 99), text=texts),
    st.builds(
        events.ToolCall,
        step=st.integers(0, 99),
        call=ids,
        name=texts,
        arguments=json_values,
        effect=st.sampled_from(["read", "idempotent", "once"]),
    ),
    st.builds(events.ToolProgress, call=ids, message=st.none() | texts, fraction=st.none() | st.floats(0, 1)),
    st.builds(events.ToolResult, call=ids, ok=st.just(True), content=json_values),
    st.builds(
        events.ToolResult,
        call=ids,
        ok=st.just(False),
        error=st.builds(events.ErrorInfo, code=texts, message=texts),
    ),
    st.builds(events.TurnCompleted, text=texts, usage=st.dictionaries(texts, st.integers(0, 10**9), max_size=3)),
    st.builds(events.TurnFailed, code=texts, message=texts, retryable=st.booleans()),
)
numbered = st.builds(
    Event,
    seq=st.integers(1, 10**12),
    epoch=st.integers(1, 10**6),
    turn=ids,
    at=st.integers(0, 10**14),
    payload=payloads,
)


@given(numbered)
def test_an_event_comes_back_from_its_line(event: Event) -> None:
    record = event.encode()
    assert Record.of(record.data) == record
    assert record.decode() == event
    assert record.decode().encode() == record


@given(numbered)
def test_a_line_is_json_on_one_line_for_every_kind_of_reader(event: Event) -> None:
    """Even for a reader that breaks lines at U+2028 and U+2029, as JavaScript once did."""
    data = event.encode().data
    assert not {"\n", "\r", "\u2028", "\u2029"} & set(data)
    assert list(json.loads(data))[:5] == ["seq", "epoch", "turn", "at", "type"]


@given(st.lists(numbered, min_size=1, max_size=5))
def test_joined_lines_split_into_the_same_lines(several: list[Event]) -> None:
    records = [event.encode() for event in several]
    assert split(join(records)) == records
    assert json.loads(join(records)) == [json.loads(record.data) for record in records]


@pytest.mark.parametrize("awkward", AWKWARD)
def test_awkward_text_survives_the_line(awkward: str) -> None:
    event = Event(1, 1, "t", 0, events.TextDelta(step=1, text=f"a{awkward}b"))
    assert event.encode().decode() == event


@pytest.mark.parametrize("value", ["\ud800", "a\udfff", {"k": ["\ud83d"]}, {"\udc00": 1}])
def test_a_lone_surrogate_is_refused_and_never_written(value: Any) -> None:
    event = Event(1, 1, "t", 0, events.ToolResult(call="1-1", ok=True, content=value))
    with pytest.raises(PydanticSerializationError):
        event.encode()


@pytest.mark.parametrize("kind", events.KNOWN)
def test_every_known_type_parses_to_its_own_class(kind: type[Payload]) -> None:
    """A line of a known type that lacks its fields is an error, not an unknown event."""
    name = kind.model_fields["type"].default
    record = Record.of(f'{{"seq":1,"epoch":1,"turn":"t","at":0,"type":"{name}","step":"x","call":7}}')
    with pytest.raises(ValidationError):
        record.decode()


def test_a_field_that_is_not_set_costs_no_byte() -> None:
    assert "null" not in Event(1, 1, "t", 0, events.ToolProgress(call="1-1")).encode().data


def test_an_unknown_type_is_kept_as_it_came() -> None:
    data = '{"seq":7,"epoch":2,"turn":"t","at":5,"type":"tool.v2-beta","x":[1,null],"text":"\\u2028"}'
    event = Record.of(data).decode()
    assert isinstance(event.payload, Unknown)
    assert (event.seq, event.type, event.encode().data) == (7, "tool.v2-beta", data)


def test_a_known_type_takes_fields_of_a_later_version() -> None:
    event = Record.of('{"seq":1,"epoch":1,"turn":"t","at":0,"type":"text.delta","step":1,"text":"a","new":1}').decode()
    assert event.payload == events.TextDelta(step=1, text="a")


@pytest.mark.parametrize(
    "data",
    ["", "{}", "[DONE]", '{"seq":1}', '{"epoch":1,"seq":1,"turn":"t","at":0,"type":"text.delta"}', ' {"seq":1', "x"],
)
def test_what_does_not_start_with_the_envelope_is_no_event(data: str) -> None:
    with pytest.raises(ValueError, match="not an event"):
        Record.of(data)


@given(st.integers(0, 10**15 - 1), st.integers(0, 10**15 - 1))
def test_a_cursor_comes_back_from_its_text(epoch: int, seq: int) -> None:
    assert Cursor.parse(str(Cursor(epoch, seq))) == Cursor(epoch, seq)


@given(st.text() | st.from_regex(r"[0-9]*-?[0-9]*"))
def test_text_is_a_cursor_or_none_and_never_an_error(text: str) -> None:
    cursor = Cursor.parse(text)
    assert cursor is None or all(part.isascii() and part.isdigit() for part in text.split("-"))


@pytest.mark.parametrize(
    "text", ["", "3", "3-", "-3", "3-4-5", " 3-4", "3-4\n", "+3-4", "3.0-4", "٣-٤", "9" * 16 + "-1"]
)
def test_nonsense_is_no_cursor(text: str) -> None:
    assert Cursor.parse(text) is None
