"""`legato chat`: a conversation in a terminal, over the client that survives everything it can."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

import httpx
from pydantic import JsonValue

from legato.client import Action, LegatoClient, RequestRefused, Run, Status, Update
from legato.errors import LegatoError, NotFound
from legato.terminal.lines import Lines
from legato.terminal.screen import Screen
from legato.turn import SessionState, TurnState

AGAIN_SECONDS: Final = 1.0
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


class Chat:
    """One session in one terminal. `echo`: lines are shown as they are sent, since no terminal shows them."""

    def __init__(self, client: LegatoClient, session: str, screen: Screen, lines: Lines, *, echo: bool) -> None:
        self._client, self._session, self._screen, self._lines, self._echo = client, session, screen, lines, echo
        self._asked: set[str] = set()
        self._offer: Offer | None = None
        self._running: Run | None = None
        self._cancelling: asyncio.Task[None] | None = None
        self._status: Status = "connecting"

    async def go_on(self) -> None:
        """Shows what was said before, and goes on with a turn that has not ended. Raises Unreachable, LegatoError."""
        snapshot = await self._snapshot()
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
            if self._client.unfinished(self._session):
                return None
            raise Unreachable(f"nothing answers there ({silent}). Start a server with: legato dev") from silent
        except RequestRefused as refused:
            if refused.status != 404:
                raise
            raise Unreachable("what answers there is no gateway. Is a path missing in --url?") from refused

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

    async def _live(self, run: Run) -> None:
        self._running, self._status = run, "connecting"
        try:
            async with run:
                async for update in run:
                    self._update(run, update)
        except LegatoError as refused:
            self._screen.line(f"✗ {refused}", "red")
        finally:
            self._running = None
            if self._cancelling:
                self._cancelling.cancel()
            self._cancelling = None

    def _update(self, run: Run, update: Update) -> None:
        before, self._status = self._status, update.status
        if update.status == "reconnecting" and before != "reconnecting":
            self._screen.line("↻ reconnecting …", "yellow")
        elif before == "reconnecting" and update.status == "streaming":
            self._screen.line("↻ connected again", "yellow")
        if run.turn:
            self._show(run.turn)
        if update.action and run.turn_id:
            self._offer = Offer(update.action, run.turn_id, run.turn.input if run.turn else None)
            why = f" ({run.refusal})" if run.refusal else ""
            self._screen.line(f"■ interrupted: {_OFFER[update.action]}{why}", "red")

    def _show(self, turn: TurnState) -> None:
        if turn.turn not in self._asked:
            self._asked.add(turn.turn)
            self._screen.asked(turn)
        self._screen.show(turn)

    async def _cancel(self, turn: str) -> None:
        while True:
            try:
                return await self._client.cancel(self._session, turn)
            except httpx.RequestError:
                await asyncio.sleep(AGAIN_SECONDS)
            except LegatoError as refused:
                return self._screen.line(f"✗ {refused}", "red")
