"""`legato chat`: a conversation in a terminal, over the client that survives everything it can."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import httpx
from pydantic import JsonValue

from legato.client import Action, LegatoClient, RequestRefused, Run, Status, Update
from legato.client.policy import passing
from legato.errors import LegatoError, NotFound
from legato.terminal.lines import Lines
from legato.terminal.screen import Screen
from legato.turn import Approval, RequiredCredential, SessionState, TurnState

QUIET_SECONDS: Final = 2.0
_OFFER: Final[dict[Action, str]] = {
    "resume": "the turn cannot be reached; Enter tries again",
    "retry": "the session does not know this turn any more; Enter sends it again",
}


class Unreachable(LegatoError):
    """Nothing answers at the URL, and nothing is left to go on with."""

    code = "unreachable"


class Offer(NamedTuple):
    """What an empty line does next."""

    action: Action
    turn: str
    input: JsonValue


class Answer(NamedTuple):
    """What was typed in answer to a question."""

    approved: bool
    note: str | None

    @classmethod
    def of(cls, line: str) -> Answer | None:
        """`y` or `n`, and a note behind it; None when the line is neither."""
        word, _, note = line.strip().partition(" ")
        if word.lower() not in {"y", "yes", "n", "no"}:
            return None
        return cls(word.lower().startswith("y"), note.strip() or None)


class Chat:
    """One session in one terminal. `echo`: lines are shown as they are sent, since no terminal shows them.

    A turn that was connected to again may be silent for `quiet` seconds before that is explained.
    """

    def __init__(
        self,
        client: LegatoClient,
        session: str,
        screen: Screen,
        lines: Lines,
        *,
        echo: bool,
        quiet: float = QUIET_SECONDS,
    ) -> None:
        self._client, self._session, self._screen, self._lines = client, session, screen, lines
        self._echo, self._quiet_seconds = echo, quiet
        self._asked: set[str] = set()
        self._offer: Offer | None = None
        self._running: Run | None = None
        self._watching: asyncio.Task[None] | None = None
        self._cancelling: asyncio.Task[None] | None = None
        self._answering: asyncio.Task[None] | None = None
        self._silence: asyncio.TimerHandle | None = None
        self._status: Status = "connecting"
        self.met = False
        """There is something to come back to: the session was asked for where it is, or is here unfinished."""

    async def go_on(self) -> None:
        """Shows what was said before, and goes on with a turn that has not ended. Raises Unreachable, LegatoError."""
        snapshot = await self._snapshot()
        self.met = True
        if self._client.unfinished(self._session):
            run = self._client.resume(self._session)
            self._history(run.state)
            await self._live(run)
        elif snapshot:
            self._history(snapshot)
            if snapshot.active:
                await self._live(self._client.resume(self._session, snapshot.active.turn))

    async def talk(self) -> None:
        """Sends line after line, each as a turn, until there are no more."""
        while True:
            if not self._echo:
                self._screen.prompt()
            line = await self._lines.next()
            if line is None:
                self._screen.end_line()
                return
            self._screen.entered()
            run = self._next(line)
            if run:
                await self._live(run)

    def interrupt(self) -> bool:
        """Asks for the running turn to be cancelled; False when none runs, or when that was asked before."""
        if not self._echo:
            self._screen.interrupted()
        turn = self._running.turn_id if self._running else None
        if turn is None or self._cancelling:
            return False
        self._screen.line("■ cancelling; Ctrl-C again leaves", "yellow")
        self._cancelling = asyncio.create_task(self._cancel(turn))
        return True

    async def _snapshot(self) -> SessionState | None:
        try:
            return await self._client.snapshot(self._session)
        except NotFound:
            return None
        except httpx.RequestError as silent:
            away: Exception = silent
        except RequestRefused as refused:
            if refused.status == 404:
                raise Unreachable("what answers there is no gateway. Is a path missing in --url?") from refused
            if not passing(refused.status):
                raise
            away = refused
        if self._client.unfinished(self._session):
            return None
        raise Unreachable(f"nothing answers there ({away}). Start a server with: legato dev") from away

    def _history(self, state: SessionState) -> None:
        for turn in (*state.turns, *([state.active] if state.active else [])):
            self._show(turn)

    def _next(self, line: str) -> Run | None:
        offer, self._offer = self._offer, None
        if line.strip():
            run = self._client.turn(self._session, line)
        elif offer is None:
            return None
        elif offer.action == "resume":
            run = self._client.resume(self._session, offer.turn)
        else:
            run = self._client.turn(self._session, offer.input, retry_of=offer.turn)
        if run.turn_id and not self._echo:
            self._asked.add(run.turn_id)
        return run

    # A turn while it runs.

    async def _live(self, run: Run) -> None:
        """Shows a turn to its end; or until it waits for an answer that nobody is there to give."""
        self._running, self._status = run, "connecting"
        self._watching = watching = asyncio.create_task(self._watch(run))
        try:
            await asyncio.wait({watching})
            if not watching.cancelled():
                watching.result()
        finally:
            self._heard()
            await _end(watching, self._answering, self._cancelling)
            self._running = self._watching = self._answering = self._cancelling = None

    async def _watch(self, run: Run) -> None:
        try:
            async with run:
                async for update in run:
                    self._update(run, update)
        except LegatoError as refused:
            self._screen.line(f"✗ {refused}", "red")

    def _update(self, run: Run, update: Update) -> None:
        before, self._status = self._status, update.status
        self._heard()
        self._say_how_it_is(before, update)
        if run.turn:
            self._show(run.turn)
        if update.status == "waiting" and before != "waiting" and run.turn:
            self._wait(run.turn)
        elif update.status == "streaming" and self._answering:
            self._answering.cancel()
            self._answering = None
        if update.action and run.turn_id:
            self._offer = Offer(update.action, run.turn_id, run.turn.input if run.turn else None)
            why = f" ({run.refusal})" if run.refusal else ""
            self._screen.line(f"■ interrupted: {_OFFER[update.action]}{why}", "red")

    def _say_how_it_is(self, before: Status, update: Update) -> None:
        if update.status == "reconnecting" and before != "reconnecting":
            self._screen.line("↻ reconnecting …", "yellow")
        elif before == "reconnecting" and update.status == "streaming":
            self._screen.line("↻ connected again", "yellow")
            self._silence = asyncio.get_running_loop().call_later(self._quiet_seconds, self._explain_silence)
        if update.event:
            self._screen.resumed(update.event.payload)

    def _explain_silence(self) -> None:
        self._screen.line("… no news: the turn works in silence, or its instance is lost and another takes over", "dim")

    def _heard(self) -> None:
        if self._silence:
            self._silence.cancel()
        self._silence = None

    def _show(self, turn: TurnState) -> None:
        if turn.turn not in self._asked:
            self._asked.add(turn.turn)
            self._screen.asked(turn)
        self._screen.show(turn)

    # What it asks.

    def _wait(self, turn: TurnState) -> None:
        if not turn.waits_for:
            self._screen.line("… waiting", "yellow")
        elif self._answering is None or self._answering.done():
            asked = turn.waits_for[0]
            self._answering = asyncio.create_task(
                self._decide(turn.turn, asked) if isinstance(asked, Approval) else self._supply(turn.turn, asked)
            )

    async def _decide(self, turn: str, asked: Approval) -> None:
        """Takes one answer. What else is asked is asked when the turn waits again."""
        self._screen.line("… waiting for you: y or n, then a note if you like", "yellow")
        answer = None
        while answer is None:
            line = await self._typed("y/n> ", self._lines.next)
            if line is None:
                return
            answer = Answer.of(line)
        await self._told(self._client.decide(self._session, turn, asked.request, answer.approved, answer.note))

    async def _supply(self, turn: str, asked: RequiredCredential) -> None:
        """Takes the credential, as `_decide` does an answer. What is typed is shown nowhere."""
        self._screen.line(f"… waiting for you: the value of {asked.name!r}, which is not shown", "yellow")
        value = ""
        while not value:
            line = await self._typed(f"{asked.name}> ", self._lines.hidden)
            if line is None:
                return
            value = line.strip()
        await self._told(self._client.supply(self._session, turn, asked.name, value))

    async def _typed(self, prompt: str, next_line: Callable[[], Awaitable[str | None]]) -> str | None:
        """None, and the turn waits on, where nobody is there to answer."""
        if not self._echo:
            self._screen.prompt(prompt)
        line = await next_line()
        if line is not None:
            self._screen.entered()
            return line
        self._screen.line("… nobody is left to answer here; the turn waits on", "yellow")
        if self._watching:
            self._watching.cancel()
        return None

    async def _told(self, answer: Awaitable[None]) -> None:
        try:
            await answer
        except (LegatoError, httpx.RequestError) as refused:
            self._screen.line(f"✗ {refused}", "red")

    async def _cancel(self, turn: str) -> None:
        try:
            await self._client.cancel(self._session, turn)
        except (LegatoError, httpx.RequestError) as refused:
            self._screen.line(f"✗ {refused}", "red")


async def _end(*tasks: asyncio.Task[Any] | None) -> None:
    running = [task for task in tasks if task]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
