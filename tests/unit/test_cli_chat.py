"""What `legato chat` says of a turn that waits or changes hands, against a scripted server."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from rich.console import Console

from client_play import (
    ASKED,
    GOES_ON,
    PAYLOADS,
    REQUIRED,
    SUPPLIED,
    TURN,
    Clockwork,
    client_of,
    closing,
    frames,
    log,
    looked,
)
from commands import until
from legato import events
from legato.client import LegatoClient
from legato.terminal.chat import Answer, Chat
from legato.terminal.lines import Lines
from legato.terminal.screen import Screen
from scripted_server import Answer as Served
from scripted_server import ScriptedServer, json_answer, problem, serving, stream

SECONDS = 10
SUSPENDED = stream(frames(ASKED), closing("suspended"))


class Terminal:
    """What is typed and what is shown."""

    def __init__(self, server: ScriptedServer, typing: int, written: io.StringIO) -> None:
        self.server, self._typing, self._written = server, typing, written

    @property
    def shown(self) -> str:
        return self._written.getvalue()

    def types(self, line: str) -> None:
        os.write(self._typing, f"{line}\n".encode())

    async def shows(self, text: str) -> None:
        await until(lambda: text in self.shown, SECONDS, lambda: self.shown)


class Patient(Clockwork):
    """Time in which the pauses of seconds pass at once and those of a look take as long as a test."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        if seconds >= 30:
            await asyncio.Event().wait()


@asynccontextmanager
async def chatting(*script: Served, time: Clockwork | None = None) -> AsyncIterator[Terminal]:
    """A chat that has sent a line, in a terminal of its own."""
    reading, typing = os.pipe()
    written = io.StringIO()
    try:
        async with (
            asyncio.timeout(10),
            serving(*script) as server,
            client_of(server, time, new_turn=iter(["t_1", "t_2"]).__next__) as client,
        ):
            screen = Screen(Console(file=written, width=200))
            talk = asyncio.create_task(Chat(client, "s_1", screen, Lines(reading), echo=True, quiet=0.2).talk())
            terminal = Terminal(server, typing, written)
            terminal.types("hi")
            yield terminal
            talk.cancel()
            await asyncio.gather(talk, return_exceptions=True)
    finally:
        os.close(reading)
        os.close(typing)


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("y", Answer(True, None)),
        (" Yes  it is fine ", Answer(True, "it is fine")),
        ("n", Answer(False, None)),
        ("NO never", Answer(False, "never")),
        ("", None),
        ("nothing", None),
    ],
)
def test_an_answer_is_yes_or_no_and_perhaps_a_note(line: str, answer: Answer | None) -> None:
    assert Answer.of(line) == answer


async def test_what_is_said_after_a_ctrl_c_that_the_terminal_shows_begins_a_line() -> None:
    written = io.StringIO()
    screen = Screen(Console(file=written))
    async with LegatoClient("http://127.0.0.1:1", "dev:me") as client:
        assert not Chat(client, "s", screen, Lines(0), echo=False).interrupt()
    screen.line("left")
    assert written.getvalue() == "\nleft\n"


async def test_a_question_is_answered_with_a_note_and_the_turn_goes_on() -> None:
    async with chatting(SUSPENDED, json_answer({}, 202), stream(frames(GOES_ON)), time=Patient()) as terminal:
        await terminal.shows("waiting for you")
        assert '? Wire 5? (wire {"amount": 5})' in terminal.shown
        terminal.types("hm")
        terminal.types("y go on")
        await terminal.shows("← wire sent")
    assert "taken over" not in terminal.shown
    assert terminal.server.requests[1].path.endswith("/turns/t_1/approvals/1-1-1")
    assert terminal.server.requests[1].body == {"approved": True, "note": "go on"}


async def test_what_another_decides_is_shown_and_a_line_typed_then_is_the_next_turn() -> None:
    typed = asyncio.Event()

    async def last(writer: asyncio.StreamWriter) -> None:
        await stream(frames(GOES_ON[2:3]))(writer)
        await typed.wait()
        writer.write(frames(GOES_ON[3:]))

    async with chatting(SUSPENDED, looked([*ASKED, *GOES_ON[:2]]), last) as terminal:
        await terminal.shows("← wire sent")
        assert terminal.shown.index("waiting for you") < terminal.shown.index("— approved by ann")
        terminal.types("y")
        await asyncio.sleep(0.1)
        typed.set()
        await until(lambda: len(terminal.server.requests) >= 4, SECONDS)
    assert terminal.server.requests[3].body == {"turn": "t_2", "input": "y"}


async def test_a_credential_is_typed_and_shown_nowhere() -> None:
    supplied = stream(frames(SUPPLIED))
    asked = stream(frames(REQUIRED), closing("suspended"))
    async with chatting(asked, json_answer({}, 202), supplied, time=Patient()) as terminal:
        await terminal.shows("waiting for you: the value of 'mail', which is not shown")
        assert "? mail? mail needs it" in terminal.shown
        terminal.types("")
        terminal.types(" s3cret ")
        await terminal.shows("← mail sent")
    assert terminal.server.requests[1].path.endswith("/turns/t_1/credentials/mail")
    assert terminal.server.requests[1].body == {"value": "s3cret"}
    assert "s3cret" not in terminal.shown


async def test_a_terminal_does_not_show_what_is_typed_hidden_and_shows_the_rest_again() -> None:
    ours, theirs = os.openpty()
    lines = Lines(theirs)
    try:
        typed = asyncio.create_task(lines.hidden())
        await asyncio.sleep(0)
        os.write(ours, b"s3cret\n")
        assert await typed == "s3cret"
        given_up = asyncio.create_task(lines.hidden())
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait({given_up})
        os.write(ours, b"seen\n")
        assert await lines.next() == "seen"
        shown = os.read(ours, 1000)
    finally:
        os.close(ours)
        os.close(theirs)
    assert shown.split() == [b"seen"]


async def test_a_decision_that_came_too_late_says_so() -> None:
    late = problem(409, "already_decided")
    async with chatting(SUSPENDED, late, stream(frames(GOES_ON)), time=Patient()) as terminal:
        await terminal.shows("waiting for you")
        terminal.types("n")
        await terminal.shows("← wire sent")
    assert "✗ because of already_decided" in terminal.shown


async def test_a_turn_that_is_taken_over_says_so_once_and_no_word_is_said_twice() -> None:
    taken = log(
        [
            events.TurnResumed(reason="lease_expired", attempt=1),
            events.StepRewound(step=1),
            events.TextDelta(step=1, text="w1 "),
            events.TextDelta(step=1, text="w2"),
            events.TurnCompleted(text="w1 w2"),
        ],
        first=3,
        epoch=2,
    )
    async with chatting(stream(frames(log(PAYLOADS[:2]))), stream(frames(taken))) as terminal:
        await terminal.shows("w2")
    lines = terminal.shown.splitlines()
    assert lines[-4:] == [
        "↻ connected again", "↻ taken over by another instance",
        "— what was said last is taken back; it is said anew:", "w1 w2",
    ]  # fmt: skip


async def test_silence_after_a_reconnect_is_explained_once_and_only_while_it_lasts() -> None:
    told = "no news"
    async with chatting(stream(frames(TURN[:2])), stream(frames(TURN[:1]), hang=True)) as terminal:
        await terminal.shows(told)
        assert terminal.shown.count(told) == 1
    async with chatting(stream(frames(TURN[:2])), stream(frames(TURN[2:6]), hang=True)) as terminal:
        await terminal.shows("w3")
        await asyncio.sleep(0.5)
        assert told not in terminal.shown
