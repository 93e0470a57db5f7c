"""The client: sends a turn once, follows it to its end, and survives whatever happens in between.

async with LegatoClient("https://agents.example.com", token) as client:
    async with client.turn("s_1", "Hello") as run:
        async for update in run:
            show(update.status, update.state)
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Literal, Self
from uuid import uuid4
from weakref import WeakSet

import httpx
from pydantic import JsonValue

from legato.client.policy import Action, Status, Timing, passing, pause
from legato.client.run import Means, Run, Update
from legato.client.store import FileStore, Saved, Sent
from legato.client.wire import RequestRefused, Token, Wire, checked, session_path
from legato.errors import AlreadyDecided, NotFound
from legato.sse import MAX_BYTES
from legato.turn import SessionState, restore

__all__ = ["Action", "FileStore", "LegatoClient", "RequestRefused", "Run", "Status", "Timing", "Token", "Update"]


def _new_turn() -> str:
    return f"t_{uuid4().hex}"


class LegatoClient:
    """A caller of one service. With a `store` it goes on where a killed process left off.

    `token` is a bearer token or an async function that gives one (called with True when a fresh one is needed).
    Every principal needs a store of its own. `max_bytes` bounds one frame; a larger one breaks its stream.
    Requests outside a turn raise LegatoError or httpx.RequestError.
    """

    def __init__(
        self,
        base_url: str,
        token: Token,
        store: FileStore | None = None,
        http: httpx.AsyncClient | None = None,
        *,
        timing: Timing | None = None,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
        new_turn: Callable[[], str] = _new_turn,
    ) -> None:
        self._own = http is None
        self._http = http or httpx.AsyncClient()
        self._wire = Wire(base_url, token, self._http)
        self._store, self._timing, self._max_bytes = store, timing or Timing(), max_bytes
        self._clock, self._sleep, self._chance, self._new_turn = clock, sleep, chance, new_turn
        self._kept: dict[str, Saved] = {}
        self._runs: WeakSet[Run] = WeakSet()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._own:
            await self._http.aclose()

    def turn(
        self,
        session: str,
        input: JsonValue,  # noqa: A002
        *,
        turn: str | None = None,
        agent: str | None = None,
        if_active: Literal["reject", "interrupt"] | None = None,
        retry_of: str | None = None,
    ) -> Run:
        """A new turn, sent when the run is iterated. Raises Invalid for an id that can be none."""
        session_path(session)
        turn_id = checked("turn", turn or self._new_turn())
        more = {"agent": agent, "if_active": if_active, "retry_of": retry_of}
        body = {"turn": turn_id, "input": input} | {name: value for name, value in more.items() if value is not None}
        return self._run(session, Saved(self._load(session).state, Sent(turn_id, body)), turn_id)

    def unfinished(self, session: str) -> str | None:
        """The turn whose end this client has not seen: sent by it, or running as far as it knows."""
        saved = self._load(session)
        if saved.sent:
            return saved.sent.turn
        return saved.state.active.turn if saved.state.active else None

    def resume(self, session: str, turn: str | None = None) -> Run:
        """Goes on with a turn, by default the unfinished one. Raises NotFound when there is none."""
        session_path(session)
        turn_id = turn or self.unfinished(session)
        if turn_id is None:
            raise NotFound(f"session {session} has no unfinished turn")
        return self._run(session, self._load(session), checked("turn", turn_id))

    def follow(self, session: str) -> Run:
        """Everything that happens in a session, turn after turn, until the caller leaves."""
        session_path(session)
        return self._run(session, self._load(session), None)

    async def snapshot(self, session: str) -> SessionState:
        return restore(await self._ask("GET", session_path(session)))

    async def sessions(self) -> AsyncIterator[dict[str, Any]]:
        """All of the caller's sessions, newest first, each as the service's JSON; asked for page by page."""
        params: dict[str, str] = {}
        while True:
            page = await self._ask("GET", "/v1/sessions", params=params)
            for listed in page["sessions"]:
                yield listed
            if page["before"] is None:
                return
            params = {"before": page["before"]}

    async def cancel(self, session: str, turn: str, reason: str | None = None) -> None:
        """Asks the turn's owner to stop, again and again until that is heard; whoever follows the turn sees it end."""
        path = f"{session_path(session)}/turns/{checked('turn', turn)}/cancel"
        await self._insist(path, {"reason": reason} if reason else {})
        self._hurry(session, turn)

    async def decide(self, session: str, turn: str, request: str, approved: bool, note: str | None = None) -> None:
        """Answers a question of a turn, again and again until that is heard; the runs of the turn here go on at once.

        The first decision counts. Raises AlreadyDecided when that was another one, NotFound, TurnGone.
        """
        path = f"{session_path(session)}/turns/{checked('turn', turn)}/approvals/{checked('request', request)}"
        await self._answer(session, turn, path, {"approved": approved} | ({"note": note} if note else {}))

    async def supply(self, session: str, turn: str, name: str, value: str, expires_in: float | None = None) -> None:
        """Gives a turn the credential that it waits for, for `expires_in` seconds, again and again until that is heard;
        the runs of the turn here go on at once. Raises AlreadyDecided when it is asked for no more, NotFound, TurnGone.
        """
        path = f"{session_path(session)}/turns/{checked('turn', turn)}/credentials/{checked('name', name)}"
        body = {"value": value} | ({"expires_in": expires_in} if expires_in is not None else {})
        await self._answer(session, turn, path, body)

    async def delete(self, session: str) -> None:
        """Deletes the session there and what is kept of it here."""
        await self._ask("DELETE", session_path(session))
        self._kept.pop(session, None)
        if self._store:
            self._store.forget(session)

    async def _answer(self, session: str, turn: str, path: str, body: dict[str, Any]) -> None:
        try:
            await self._insist(path, body)
        except AlreadyDecided:
            self._hurry(session, turn)
            raise
        self._hurry(session, turn)

    def _hurry(self, session: str, turn: str) -> None:
        for run in self._runs:
            if run.session == session and run.turn_id in (turn, None):
                run.hurry()

    async def _insist(self, path: str, body: dict[str, Any]) -> None:
        """Repeats what may be repeated while the network or a passing refusal is in the way, `give_up` seconds long."""
        until, attempts = self._clock() + self._timing.give_up, 0
        while True:
            asked = None
            try:
                await self._ask("POST", path, json=body)
                return
            except httpx.RequestError:
                if self._clock() >= until:
                    raise
            except RequestRefused as refused:
                if not passing(refused.status) or self._clock() >= until:
                    raise
                asked = refused.pause
            await self._sleep(pause(attempts, self._timing, self._chance(), asked))
            attempts += 1

    async def _ask(self, method: str, path: str, **request: Any) -> Any:
        return await self._wire.ask(method, path, silence=self._timing.silence, **request)

    def _load(self, session: str) -> Saved:
        if session not in self._kept:
            stored = self._store.load(session) if self._store else None
            self._kept[session] = stored or Saved(SessionState(session))
        return self._kept[session]

    def _run(self, session: str, saved: Saved, turn_id: str | None) -> Run:
        def save(state: SessionState, sent: Sent | None) -> None:
            other = self._load(session).sent
            if sent is None and other and other.turn != turn_id:
                sent = other
            self._kept[session] = Saved(state, sent)
            if self._store:
                self._store.save(session, self._kept[session])

        means = Means(self._wire, self._timing, self._max_bytes, self._clock, self._sleep, self._chance, save)
        run = Run(means, session, saved, turn_id)
        self._runs.add(run)
        return run
