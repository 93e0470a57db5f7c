"""What a terminal is shown of a turn: the difference to what it was shown before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from legato.events import (
    ApprovalRequested,
    ApprovalResolved,
    CredentialRequired,
    CredentialSupplied,
    ErrorInfo,
    StepRewound,
    TextDelta,
    TurnInterrupted,
)
from legato.terminal.view import Piece, difference, in_words, printable
from legato.turn import Part, ToolState, TurnState, advance

RUNNING = ToolState("1-1", 1, "transfer", {"amount": 2})
STREAMING = TurnState("t", "streaming", draft=(Part(1, "a b "),), tools=(RUNNING,))


def pieces(shown: TurnState | None, turn: TurnState) -> list[tuple[str, str]]:
    return [(piece.kind, piece.text) for piece in difference(shown, turn)]


def test_a_turn_seen_first_is_shown_step_by_step() -> None:
    turn = replace(STREAMING, draft=(Part(1, "a b "), Part(2, "c ")))
    assert pieces(None, turn) == [("text", "a b "), ("call", 'transfer {"amount": 2}'), ("text", "c ")]


def test_only_what_is_new_is_shown() -> None:
    done = replace(RUNNING, status="ok", content="fine")
    turn = replace(STREAMING, draft=(Part(1, "a b "), Part(2, "c")), tools=(done,))
    assert pieces(STREAMING, turn) == [("result", "transfer fine"), ("text", "c")]
    assert pieces(turn, turn) == []


def test_text_that_is_not_what_was_shown_is_taken_back_and_said_anew_from_its_step_on() -> None:
    turn = replace(STREAMING, draft=(Part(1, "a b "), Part(2, "x ")))
    note, *text = difference(replace(turn, draft=(Part(1, "a b "), Part(2, "c d "))), turn)
    assert (note.kind, text) == ("note", [Piece("text", "x ")])
    turn = replace(STREAMING, draft=(Part(1, "a x "),))
    assert [piece.kind for piece in difference(STREAMING, turn)] == ["note", "text", "call"]


def test_a_step_that_starts_over_is_taken_back_once_and_then_goes_on() -> None:
    shown = replace(STREAMING, draft=(Part(1, "a b "), Part(2, "c d ")))
    rewound = advance(shown, StepRewound(step=2))
    assert [piece.kind for piece in difference(shown, rewound)] == ["note"]
    assert pieces(rewound, advance(rewound, TextDelta(step=2, text="c "))) == [("text", "c ")]


def test_an_end_that_is_not_what_was_shown_is_shown_from_the_start() -> None:
    turn = replace(STREAMING, status="completed", draft=(), tools=(), output="a c")
    assert [kind for kind, _ in pieces(STREAMING, turn)] == ["note", "text"]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("approval", 'Transfer 2? (transfer {"amount": 2})'),
        ("in_doubt", 'transfer {"amount": 2} may or may not have been done. Do it again?'),
    ],
)
def test_a_question_is_shown_with_its_call_and_so_is_its_answer(kind: str, said: str) -> None:
    asked = advance(
        STREAMING, ApprovalRequested(request="q", call="1-1", kind=kind, prompt="Transfer 2?", expires_at=9)
    )
    assert pieces(STREAMING, asked) == [("question", said)]
    answered = advance(asked, ApprovalResolved(request="q", approved=False, by="ann", note="too much"))
    assert pieces(asked, answered) == [("note", "denied by ann: too much")]
    late = advance(asked, ApprovalResolved(request="q", approved=False, by="expiry"))
    assert pieces(asked, late) == [("note", "denied: nobody answered in time")]


def test_a_completed_turn_adds_only_the_text_that_was_not_seen() -> None:
    turn = replace(STREAMING, status="completed", draft=(), tools=(), output="a b c")
    assert pieces(replace(STREAMING, tools=()), turn) == [("text", "c")]


@pytest.mark.parametrize(
    ("turn", "said"),
    [
        (TurnState("t", "interrupted", partial="a"), "interrupted"),
        (TurnState("t", "failed", partial="a", error=ErrorInfo(code="oh", message="no")), "failed: no (oh)"),
    ],
)
def test_any_other_end_is_said_and_keeps_what_was_written(turn: TurnState, said: str) -> None:
    assert pieces(None, turn) == [("text", "a"), ("end", said)]


@pytest.mark.parametrize(
    ("tool", "piece"),
    [
        (replace(RUNNING, message="half", fraction=0.5), ("progress", "transfer: half 50%")),
        (replace(RUNNING, status="error", error=ErrorInfo(code="c", message="m")), ("error", "transfer: m (c)")),
        (replace(RUNNING, status="unsettled"), ("error", "transfer: no result was recorded")),
    ],
)
def test_every_state_of_a_tool_has_a_line(tool: ToolState, piece: tuple[str, str]) -> None:
    assert pieces(STREAMING, replace(STREAMING, tools=(tool,))) == [piece]


def test_a_terminal_obeys_nothing_that_a_model_says() -> None:
    assert printable("a\x1b[2J\x9b\r\nb\tc\u202e") == "a�[2J��\nb\tc�"


def test_a_long_value_is_cut_and_says_so() -> None:
    assert in_words("x" * 500, 10) == "x" * 10 + "… (500 characters)"


def test_a_credential_that_is_required_is_shown_once_and_so_is_that_it_is_no_more() -> None:
    required = advance(STREAMING, CredentialRequired(name="mail", reason="transfer needs it", expires_at=9))
    assert pieces(STREAMING, required) == [("question", "mail? transfer needs it")]
    assert pieces(required, required) == []
    assert pieces(required, advance(required, CredentialSupplied(name="mail"))) == [
        ("note", "mail is asked for no more")
    ]
    ended = advance(required, TurnInterrupted(reason="enough", by="ann"))
    assert ("note", "mail is asked for no more") not in pieces(required, ended)
