"""What the demo takes for proof, and what becomes of it when there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from legato import cli
from legato.events import Event, Payload, TextDelta, TurnResumed
from legato.terminal.showcase import TURN, WORDS, DemoFailed, Passage, check
from legato.turn import SessionState, TurnState

WHOLE = SessionState("demo", turns=(TurnState(TURN, "completed", output=WORDS),))
LEDGER = ['{"amount": 20}', '{"amount": 5}']
SAID = TextDelta(step=1, text="w")
RESUMED = TurnResumed(reason="lease_expired", attempt=1)


def passage(instance: str, *numbers: int, payload: Payload = SAID) -> Passage:
    return Passage(instance, [Event(seq, 1, TURN, 0, payload).encode() for seq in numbers])


def passages(*, first: str = "a", second: tuple[int, ...] = (3, 4), payload: Payload = RESUMED) -> list[Passage]:
    return [passage(first, 1, 2), passage("b", *second, payload=payload), passage("a", 5)]


def test_passages_that_join_over_a_lost_owner_and_tools_that_ran_once_are_taken() -> None:
    check(WHOLE, passages(), LEDGER)


@pytest.mark.parametrize(
    ("state", "parts", "entries", "said"),
    [
        (WHOLE, passages(second=(4,)), LEDGER, "missing"),
        (WHOLE, passages(second=(2, 3, 4)), LEDGER, "twice"),
        (WHOLE, passages(first="b"), LEDGER, "both connections"),
        (WHOLE, passages(payload=SAID), LEDGER, "not lost"),
        (WHOLE, passages(), [LEDGER[0], *LEDGER], "once"),
        (WHOLE, passages(), LEDGER[:1], "once"),
        (replace(WHOLE, turns=()), passages(), LEDGER, "not whole"),
    ],
)
def test_anything_else_is_a_failure_that_says_what_was_seen(
    state: SessionState, parts: list[Passage], entries: list[str], said: str
) -> None:
    with pytest.raises(DemoFailed, match=said):
        check(state, parts, entries)


def test_a_failure_is_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    async def fail() -> None:
        raise DemoFailed("seen\nsomething else")

    with pytest.raises(SystemExit) as exit_:
        cli._run(fail(), stopped=0)
    assert exit_.value.code == 1
    assert capsys.readouterr().err == "legato: seen something else\n"
