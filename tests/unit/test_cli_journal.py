"""`legato journal`: the table of a session's journal."""

from __future__ import annotations

import asyncio
import io
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from legato.app import open_journal
from legato.cli import main
from legato.events import (
    ApprovalRequested,
    ApprovalResolved,
    Event,
    Payload,
    StepRewound,
    TextDelta,
    TurnInterrupted,
    TurnResumed,
    TurnStarted,
    TurnSuspended,
)
from legato.journal import Commit, Head, Segment, SessionKey, Standing
from legato.settings import Settings
from legato.terminal.history import rows, stored, table

FAR = 10**13
HEAD = Head(epoch=1, seq=0, turn=None, created_at=1, updated_at=1, expires_at=FAR)


def segment(epoch: int, first: int, *payloads: Payload) -> Segment:
    records = [Event(first + n, epoch, "t", 1, payload).encode() for n, payload in enumerate(payloads)]
    return Segment.of(records, f"c{first}", FAR)


BEGUN = segment(1, 1, TurnStarted(agent="demo"))
SAID = segment(1, 2, *(TextDelta(step=1, text=f"w{n}") for n in range(3)))
TAKEN = segment(2, 5, TurnResumed(reason="lease_expired", attempt=1))


def shown(standing: Standing, *segments: Segment) -> list[str]:
    return [row.seam or f"{row.mark}{row.event.seq if row.event else ''}" for row in rows(standing, segments)]


def test_segments_are_marked_and_epochs_are_seams() -> None:
    assert shown(Standing(HEAD, None, None, 5), BEGUN, SAID, TAKEN) == [
        "epoch 1: a turn begins", "╶1", "╭2", "│3", "╰4",
        "epoch 2: its owner is lost; the turn goes on with another", "╶5"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (TurnResumed(reason="decision", attempt=0), "epoch 2: a person has decided; the turn goes on"),
        (TurnInterrupted(reason="the session was deleted", by="owner"), "epoch 2: the turn is ended"),
    ],
)
def test_a_seam_says_what_the_epoch_is_for(payload: Payload, said: str) -> None:
    assert said in shown(Standing(HEAD, None, None, 5), BEGUN, SAID, segment(2, 5, payload))


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (
            ApprovalRequested(request="1-1-1", call="1-1", kind="approval", prompt="Wire 5?", expires_at=0),
            r"1-1-1 \(approval of call 1-1, until 19[67]\d-\d\d-\d\d \d\d:\d\d\): Wire 5\?",
        ),
        (ApprovalResolved(request="1-1-1", approved=True, by="me", note="go"), "1-1-1 approved by me: go"),
        (ApprovalResolved(request="1-1-1", approved=False, by="me"), "1-1-1 denied by me"),
        (TurnResumed(reason="lease_expired", attempt=2), "lease_expired; owners lost: 2"),
        (TurnSuspended(reason="approval"), r"waits for a person \(approval\); its lease is released"),
        (StepRewound(step=3), "step 3 starts over; its text is taken back"),
    ],
)
def test_what_happens_to_a_turn_is_a_sentence(payload: Payload, said: str) -> None:
    written = io.StringIO()
    Console(width=240, file=written).print(table(list(rows(Standing(HEAD, None, None, 1), [segment(1, 1, payload)]))))
    assert re.search(rf"  {said} *$", written.getvalue().splitlines()[-1])


def test_holes_are_said_wherever_they_are() -> None:
    said = shown(Standing(HEAD, None, None, 9), SAID)
    assert said[0] == "event 1 is gone: it has expired"
    assert said[-1] == "events 5 to 9 are gone: they have expired"


def test_a_narrow_terminal_takes_from_the_last_column_alone() -> None:
    long = segment(1, 1, TurnStarted(agent="demo", input="x" * 500))
    written = io.StringIO()
    Console(width=80, file=written).print(table(list(rows(Standing(HEAD, None, None, 1), [long]))))
    *_, line = written.getvalue().splitlines()
    assert re.match(r"╶ +1 +1  \d\d:\d\d:\d\d\.\d{3}  t +turn\.started  input=x+…$", line.rstrip())


async def kept(url: str, segment: Segment) -> None:
    journal = open_journal(Settings(journal=url))
    await journal.commit(SessionKey("me", "s"), Commit(segment=segment, head=HEAD))
    await journal.close()


async def test_both_stores_give_what_they_hold(journal_url: str) -> None:
    journal, key = open_journal(Settings(journal=journal_url)), SessionKey("me", "s")
    try:
        await journal.commit(key, Commit(segment=BEGUN, head=HEAD))
        await journal.append(key, SAID)
        standing, segments = await stored(journal, key, 1)
    finally:
        await journal.close()
    assert [part.events for part in segments] == [BEGUN.events, SAID.events]
    assert standing.seq == 4


def test_a_journal_that_is_not_there_is_not_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEGATO_JOURNAL", f"sqlite:///{tmp_path}/none.sqlite")
    answer = CliRunner().invoke(main, ["journal", "s"])
    assert answer.exit_code == 2
    assert "there is no such file" in answer.output
    assert not list(tmp_path.iterdir())


def test_no_line_for_a_pipe_ends_in_blanks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/journal.sqlite"
    monkeypatch.setenv("LEGATO_JOURNAL", url)
    asyncio.run(kept(url, BEGUN))
    lines = CliRunner().invoke(main, ["journal", "s"]).output.splitlines()
    assert [line for line in lines if line != line.rstrip()] == []
    assert len(lines) == 3
