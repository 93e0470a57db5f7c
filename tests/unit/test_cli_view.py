"""What a terminal is shown of a turn: the difference to what it was shown before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from legato.events import ErrorInfo
from legato.terminal.view import Piece, difference, in_words, printable
from legato.turn import Part, ToolState, TurnState

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


def test_text_that_was_taken_back_is_said_and_shown_again() -> None:
    turn = replace(STREAMING, draft=(Part(1, "a x "),), tools=())
    (note, text) = difference(STREAMING, turn)
    assert note.kind == "note"
    assert text == Piece("text", "a x ")


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
