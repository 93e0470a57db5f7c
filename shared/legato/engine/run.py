"""The turns of this instance: started, found, taken over. A turn is a task of its own; no request owns it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import JsonValue

from legato.agents import AgentFunction
from legato.engine.fences import CANCELS, cancel_of, fence, last_word, newest, open_cancels
from legato.engine.live import LiveTurn
from legato.engine.records import Origin, fold, origin_of, record_of, state_of
from legato.engine.runtime import ANSWER_SECONDS, Runtime, answer, persist
from legato.engine.view import events_between
from legato.errors import Conflict, Invalid, JournalUnavailable, SessionBusy, TurnConflict
from legato.events import Cursor, Payload, TurnResumed, TurnStarted
from legato.journal import ActiveTurn, Cancel, Commit, Control, SessionKey, Standing, TurnRecord
from legato.turn import TurnState, advance

log = logging.getLogger("legato.engine")


@dataclass(frozen=True, slots=True)
class StartTurn:
    """What a client asks for. `turn` is the idempotency key; `agent` None means the default."""

    turn: str
    input: JsonValue
    agent: str | None = None
    if_active: Literal["reject", "interrupt"] = "reject"
    retry_of: str | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """The turn's record, and whether this request began it or found it."""

    record: TurnRecord
    created: bool


class Engine:
    """Owns the live turns of one process. `agents` maps names to agents; `default` names the one to use."""

    def __init__(self, runtime: Runtime, agents: Mapping[str, AgentFunction], default: str) -> None:
        self.live: dict[SessionKey, LiveTurn] = {}
        self._runtime = runtime
        self._agents = agents
        self._default = default
        self._tasks: set[asyncio.Task[Any]] = set()
        self._taking: set[SessionKey] = set()

    async def start(self, key: SessionKey, request: StartTurn) -> Started:
        """Begins a turn, or finds the one that has this id; returns when its first event is durable.

        Raises SessionBusy, TurnConflict, Invalid, JournalUnavailable. A request that goes away takes nothing with it.
        """
        name = request.agent or self._default
        if name not in self._agents:
            known = ", ".join(sorted(self._agents))
            raise Invalid("agent", f"there is no agent {name!r}; there are: {known}")
        task = self._spawn(self._start(key, replace(request, agent=name)))
        try:
            return await asyncio.wait_for(asyncio.shield(task), 2 * ANSWER_SECONDS)
        except TimeoutError:
            raise JournalUnavailable("the journal does not answer; send the same request again") from None

    def orphaned(self, standing: Standing) -> bool:
        """A turn is streaming and nobody holds its lease."""
        turn = standing.head.turn if standing.head else None
        return turn is not None and turn.status == "streaming" and not standing.owned(self._runtime.clock())

    async def take_over(self, key: SessionKey) -> None:
        """Fences an orphaned turn under a new epoch and brings it to an end; returns when that is done or another did.

        A turn that someone wanted cancelled ends as interrupted, any other as failed.
        """
        if key in self.live or key in self._taking:
            return
        self._taking.add(key)
        try:
            await asyncio.shield(self._spawn(self._take_over(key)))
        finally:
            self._taking.discard(key)

    def adopt(self, key: SessionKey) -> None:
        """`take_over` without waiting for it."""
        self._spawn(self.take_over(key))

    async def close(self) -> None:
        """Stops everything here at once; leases are left to expire."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Starting.

    async def _start(self, key: SessionKey, request: StartTurn) -> Started:
        journal = self._runtime.journal
        patience = asyncio.get_running_loop().time() + ANSWER_SECONDS
        trust_head = True
        while True:
            standing = await answer(journal.standing, key, trust_head=trust_head)
            active = standing.head.turn if standing.head else None
            if active is None:
                with suppress(Conflict):
                    return Started(await self._begin(key, standing, request), created=True)
                trust_head = False
            known = await answer(journal.turn, key, request.turn)
            if known:
                return Started(_same(known, request), created=False)
            if active:
                orphaned = self.orphaned(standing)
                unwanted = request.if_active == "reject" and not orphaned
                if unwanted or asyncio.get_running_loop().time() > patience:
                    raise SessionBusy(active.id)
                await self._make_way(key, active, orphaned)

    async def _make_way(self, key: SessionKey, active: ActiveTurn, orphaned: bool) -> None:
        """Ends what stands in the way of a new turn, or gives it a moment to end."""
        if orphaned:
            await self.take_over(key)
        else:
            await self.cancel(key, active.id, "replaced by another turn", key.uid)
        await asyncio.sleep(0.05)

    async def cancel(self, key: SessionKey, turn: str, reason: str, by: str) -> None:
        """Asks for a turn's end in `control`, where its owner sees it wherever it runs; if that is here, tells it."""
        journal, now = self._runtime.journal, self._runtime.clock()
        while True:
            control = await answer(journal.control, key)
            known = control.cancels if control else {}
            cancel = known.get(turn) or Cancel(reason, by, now)
            if turn not in known:
                cancels = newest({**known, turn: cancel}, CANCELS)
                expires_at = now + self._runtime.retention_ms
                asked = replace(control or Control({}, expires_at), cancels=cancels, expires_at=expires_at)
                try:
                    await answer(journal.commit, key, Commit(control=asked))
                except Conflict:
                    continue
            self.cancel_here(key, turn, cancel)
            return

    def cancel_here(self, key: SessionKey, turn: str, cancel: Cancel) -> None:
        """Tells the turn, where it runs on this instance."""
        live = self.live.get(key)
        if live and live.id == turn:
            live.cancel(cancel)

    async def _begin(self, key: SessionKey, standing: Standing, request: StartTurn) -> TurnRecord:
        """Commits `turn.started` with everything that makes this instance the owner, and sets the turn going."""
        assert request.agent is not None
        runtime = self._runtime
        begun = TurnStarted(input=request.input, agent=request.agent)
        state = TurnState(request.turn, "streaming", request.input, request.agent)
        first = standing.seq + 1
        now = runtime.clock()
        origin = Origin(first, now, request.retry_of)
        record = record_of(state, origin, None, None, now + runtime.retention_ms)
        commit = replace(fence(runtime, standing, begun, request.turn), turn=record, new_turn=True)
        control = standing.control
        if control and (kept := open_cancels(runtime, standing, control)) != control.cancels:
            commit = replace(commit, control=replace(control, cancels=kept))
        live = LiveTurn(runtime, key, await persist(runtime.journal.commit, key, commit), state, origin)
        if cancel := cancel_of(control, request.turn):
            live.cancel(cancel)
        agent = self._agents[request.agent]
        self._own(live, lambda live: live.run_agent(agent))
        return record

    # Taking over.

    async def _take_over(self, key: SessionKey) -> None:
        runtime = self._runtime
        standing = await persist(runtime.journal.standing, key)
        turn = standing.head.turn if standing.head else None
        if turn is None or not self.orphaned(standing):
            return
        record = await persist(runtime.journal.turn, key, turn.id) or self._lost_record(standing, turn)
        attempts = standing.lease.attempts + 1 if standing.lease else 1
        resumed = TurnResumed(reason="lease_expired", attempt=attempts)
        try:
            committed = await persist(runtime.journal.commit, key, fence(runtime, standing, resumed, turn.id, attempts))
        except Conflict:
            return
        state = await self._recover(key, record, standing.seq)
        ending = last_word(runtime, standing, turn.id)
        live = LiveTurn(runtime, key, committed, advance(state, resumed), origin_of(record))
        await asyncio.shield(self._own(live, lambda _: _given(ending)))

    def _lost_record(self, standing: Standing, turn: ActiveTurn) -> TurnRecord:
        """In place of the record of a turn that was left for so long that it has expired."""
        now = self._runtime.clock()
        expires_at = now + self._runtime.retention_ms
        return TurnRecord(turn.id, turn.status, self._default, None, standing.seq + 1, now, expires_at)

    async def _recover(self, key: SessionKey, record: TurnRecord, head: int) -> TurnState:
        """The turn as its events tell it up to `head`; where they are not all there any more, what its record says."""
        segments = await persist(events_between, self._runtime, key, record.first, head)
        folded = fold(key.session, (), Cursor(0, record.first - 1), segments or ())
        return folded.active or state_of(record)

    # Owning.

    def _own(self, live: LiveTurn, body: Callable[[LiveTurn], Awaitable[Payload]]) -> asyncio.Task[None]:
        self.live[live.key] = live
        return self._spawn(self._live(live, body))

    async def _live(self, live: LiveTurn, body: Callable[[LiveTurn], Awaitable[Payload]]) -> None:
        try:
            await live.live(body)
        except Exception:
            log.exception("turn %s stopped unexpectedly; it is left to another owner", live.id)
        finally:
            if self.live.get(live.key) is live:
                del self.live[live.key]

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()


def _same(record: TurnRecord, request: StartTurn) -> TurnRecord:
    if record.agent != request.agent or not _alike(record.input, request.input):
        raise TurnConflict(f"turn {record.turn} was started with another input or agent; choose a new id")
    return record


def _alike(one: JsonValue, other: JsonValue) -> bool:
    """The same JSON; to Python true is 1 and 1 is 1.0."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


async def _given(payload: Payload) -> Payload:
    return payload
