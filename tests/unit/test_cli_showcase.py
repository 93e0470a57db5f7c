"""What the demo takes for proof, and what becomes of it when there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from legato import cli
from legato.events import Event, TextDelta
from legato.terminal.showcase import TURN, WORDS, DemoFailed, Passage, check
from legato.turn import SessionState, TurnState

WHOLE = SessionState("demo", turns=(TurnState(TURN, "completed", output=WORDS),))


def passage(instance: str, *numbers: int) -> Passage:
    return Passage(instance, [Event(seq, 1, TURN, 0, TextDelta(step=1, text="w")).encode() for seq in numbers])


def test_two_passages_that_join_and_one_transfer_are_taken() -> None:
    check(WHOLE, passage("a", 1, 2), passage("b", 3), ["{}"])


@pytest.mark.parametrize(
    ("state", "first", "rest", "entries", "said"),
    [
        (WHOLE, passage("a", 1, 2), passage("b", 4), ["{}"], "missing"),
        (WHOLE, passage("a", 1, 2), passage("b", 2, 3), ["{}"], "twice"),
        (WHOLE, passage("a", 1, 2), passage("a", 3), ["{}"], "both connections"),
        (WHOLE, passage("a", 1, 2), passage("b", 3), ["{}", "{}"], "2 times"),
        (replace(WHOLE, turns=()), passage("a", 1, 2), passage("b", 3), ["{}"], "not whole"),
    ],
)
def test_anything_else_is_a_failure_that_says_what_was_seen(
    state: SessionState, first: Passage, rest: Passage, entries: list[str], said: str
) -> None:
    with pytest.raises(DemoFailed, match=said):
        check(state, first, rest, entries)


def test_a_failure_is_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    async def fail() -> None:
        raise DemoFailed("seen\nsomething else")

    with pytest.raises(SystemExit) as exit_:
        cli._run(fail(), stopped=0)
    assert exit_.value.code == 1
    assert capsys.readouterr().err == "legato: seen something else\n"
