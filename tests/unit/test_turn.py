"""The reducer: the case files, and what holds for any events in any pieces."""

from __future__ import annotations

import json
from functools import reduce as fold
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato import events, sse
from legato.errors import SequenceGap
from legato.events import Event, Payload, Record
from legato.turn import ENDED, TRANSITIONS, SessionState, TurnState, advance, reduce, restore, snapshot

CASES = [
    pytest.param(case, id=f"{path.stem}: {case['name']}")
    for path in sorted((Path(__file__).parents[1] / "cases" / "turns").glob("*.json"))
    for case in json.loads(path.read_text())
]


def event(fields: dict[str, Any]) -> Event:
    return Record.of(json.dumps(fields, separators=(",", ":"))).decode()


def begin(case: dict[str, Any]) -> SessionState:
    state = fold(reduce, map(event, case.get("before", [])), SessionState("s_1"))
    return restore(case["restore"]) if "restore" in case else state


@pytest.mark.parametrize("case", CASES)
def test_a_case_gives_its_snapshot(case: dict[str, Any]) -> None:
    state, refused = begin(case), None
    for fields in case["events"]:
        try:
            state = reduce(state, event(fields))
        except SequenceGap as gap:
            refused = gap.code
    assert snapshot(state) == case["snapshot"]
    assert refused == case.get("error")


@pytest.mark.parametrize("case", CASES)
def test_a_state_comes_back_from_its_snapshot_after_every_event(case: dict[str, Any]) -> None:
    state = begin(case)
    for fields in case["events"] if "error" not in case else []:
        state = reduce(state, event(fields))
        assert restore(json.loads(json.dumps(snapshot(state)))) == state


def test_there_are_cases() -> None:
    """An empty directory of cases does not pass unseen."""
    assert len(CASES) > 40


TURNS, CALLS = (st.sampled_from(names) for names in (["t_1", "t_2"], ["1-1", "1-2"]))
STEPS = st.integers(1, 2)
REQUESTS, NAMES, TEXTS = (st.sampled_from(names) for names in (["q1", "q2"], ["mail", "drive"], ["a", "\u2028", ""]))
PAYLOADS: st.SearchStrategy[Payload] = st.one_of(
    st.builds(events.TurnStarted, input=TEXTS, agent=st.just("demo")),
    st.builds(events.TurnResumed, reason=TEXTS, attempt=STEPS),
    st.builds(events.TextDelta, step=STEPS, text=TEXTS),
    st.builds(events.ReasoningDelta, step=STEPS, text=TEXTS),
    st.builds(events.ToolCall, step=STEPS, call=CALLS, name=NAMES, arguments=TEXTS, effect=st.just("once")),
    st.builds(events.ToolProgress, call=CALLS, message=st.none() | TEXTS),
    st.builds(events.ToolResult, call=CALLS, ok=st.booleans(), content=TEXTS),
    st.builds(events.ApprovalRequested, request=REQUESTS, call=CALLS, kind=TEXTS, prompt=TEXTS, expires_at=STEPS),
    st.builds(events.ApprovalResolved, request=REQUESTS, approved=st.booleans(), by=TEXTS),
    st.builds(events.CredentialRequired, name=NAMES, reason=TEXTS, expires_at=STEPS),
    st.builds(events.CredentialSupplied, name=NAMES),
    st.builds(events.CredentialWithdrawn, name=NAMES),
    st.builds(events.TurnSuspended, reason=TEXTS),
    st.builds(events.StepRewound, step=STEPS),
    st.builds(events.TurnCompleted, text=TEXTS),
    st.builds(events.TurnInterrupted, reason=TEXTS, by=TEXTS),
    st.builds(events.TurnFailed, code=TEXTS, message=TEXTS),
    st.builds(events.Unknown, type=st.just("later.kind")),
)
HISTORIES = st.lists(st.tuples(TURNS, PAYLOADS), max_size=30).map(
    lambda drawn: [Event(at + 1, 1, turn, 0, payload) for at, (turn, payload) in enumerate(drawn)]
)


def run(history: list[Event], state: SessionState | None = None) -> SessionState:
    return fold(reduce, history, state or SessionState("s_1"))


@given(HISTORIES, st.data())
def test_repeating_any_prefix_at_any_time_changes_nothing(history: list[Event], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(history)))
    prefix = data.draw(st.integers(0, at))
    assert run(history[at:], run(history[:prefix], run(history[:at]))) == run(history)


@given(HISTORIES, st.data())
def test_a_snapshot_at_any_moment_stands_for_the_events_before_it(history: list[Event], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(history)))
    state = run(history[:at])
    restored = restore(json.loads(json.dumps(snapshot(state))))
    assert restored == state
    assert run(history[at:], restored) == run(history)


@given(HISTORIES, st.lists(st.integers(1, 40), min_size=1))
def test_any_chunking_of_the_stream_gives_the_same_state(history: list[Event], sizes: list[int]) -> None:
    stream = b"".join(sse.frame(event.encode()) for event in history)
    decoder, state, at = sse.Decoder(), SessionState("s_1"), 0
    while at < len(stream):
        size = sizes[at % len(sizes)]
        state = run([Record.of(message.data).decode() for message in decoder.feed(stream[at : at + size])], state)
        at += size
    assert state == run(history)


@given(HISTORIES)
def test_only_text_extends_a_draft_and_only_a_rewind_or_an_end_shortens_it(history: list[Event]) -> None:
    state = SessionState("s_1")
    for fact in history:
        before, state = state.active, reduce(state, fact)
        if before and state.active and state.active.text != before.text:
            assert fact.type in {"text.delta", "step.rewound"}
            assert (len(state.active.text) > len(before.text)) == (fact.type == "text.delta")


@given(HISTORIES)
def test_an_output_exists_only_where_a_turn_completed(history: list[Event]) -> None:
    said = {(fact.turn, fact.payload.text) for fact in history if isinstance(fact.payload, events.TurnCompleted)}
    for turn in run(history).turns:
        assert (turn.output is not None) == (turn.status == "completed") == (turn.partial is None)
        assert turn.output is None or (turn.turn, turn.output) in said
        assert turn.draft == ()


@given(HISTORIES)
def test_an_ended_turn_never_changes_and_no_call_of_it_is_left_running(history: list[Event]) -> None:
    state = SessionState("s_1")
    for fact in history:
        before, state = state.turns, reduce(state, fact)
        assert state.turns[: len(before)] == before
    assert all(tool.status != "running" for turn in state.turns for tool in turn.tools)


@given(HISTORIES.filter(len), st.integers(2, 9))
def test_a_hole_of_any_width_is_refused(history: list[Event], width: int) -> None:
    last = history[-1]
    with pytest.raises(SequenceGap):
        reduce(run(history), Event(last.seq + width, 1, last.turn, 0, last.payload))


@given(PAYLOADS, st.sampled_from(sorted(TRANSITIONS)))
def test_a_status_moves_only_as_the_table_says(payload: Payload, status: Any) -> None:
    turn = TurnState("t_1", status, "hi", "demo")
    moved = advance(turn, payload)
    assert moved.status == TRANSITIONS[turn.status].get(payload.type, status)
    assert moved == turn or turn.accepts(payload.type)


def test_the_table_leads_nowhere_from_an_end_and_to_every_end_from_a_stream() -> None:
    assert all(TRANSITIONS[status] == {} for status in TRANSITIONS if status in ENDED)
    assert set(TRANSITIONS["streaming"].values()) >= ENDED


@pytest.mark.parametrize("fields", [{}, {"cursor": None}, {"cursor": "x", "session": "s"}, {"cursor": "1-1"}])
def test_what_is_no_snapshot_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"snapshot|validation error"):
        restore(fields)
