"""The turns of this instance: started, found, taken over. A turn is a task of its own; no request owns it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import JsonValue

from legato.agents import AgentFunction
from legato.engine.live import LiveTurn
from legato.engine.records import Origin, fold, joined, record_of, state_of
from legato.engine.runtime import ANSWER_SECONDS, Runtime, answer, persist
from legato.errors import Conflict, Invalid, JournalUnavailable, SessionBusy, TurnConflict
from legato.events import Cursor, Event, Payload, TurnFailed, TurnInterrupted, TurnResumed, TurnStarted
from legato.journal import ActiveTurn, Cancel, Commit, Control, Head, Lease, Segment, SessionKey, Standing, TurnRecord
from legato.turn import TurnState, advance

log = logging.getLogger("legato.engine")

EXPIRY_MARGIN_MS = 3_600_000


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

    def cancel(self, key: SessionKey, turn: str, wish: Cancel) -> bool:
        """Passes a wish on to the turn where it runs on this instance; says whether it does."""
        live = self.live.get(key)
        if live is None or live.id != turn:
            return False
        live.cancel(wish)
        return True

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

    def tombstone(self, standing: Standing) -> Commit:
        """What deletes a session: its head says so under a new epoch, an active turn is fenced by its end, and whatever
        was asked of its turns is withdrawn, so that what is asked from now on can be told from it."""
        now, old = self._runtime.clock(), standing.head
        assert old
        asked = standing.control
        control = replace(asked, cancels={}) if asked and asked.cancels else None
        expires_at = now + self._runtime.retention_ms
        if old.turn is None:
            moved = replace(old, epoch=standing.epoch + 1, seq=standing.seq, updated_at=now, expires_at=expires_at)
            return Commit(head=replace(moved, deleted=True), control=control)
        fence = self._fence(standing, TurnInterrupted(reason="the session was deleted", by="owner"), old.turn.id, 0)
        assert fence.segment
        assert fence.head
        assert fence.lease
        head = replace(fence.head, seq=fence.segment.last, turn=None, deleted=True)
        return replace(fence, head=head, lease=replace(fence.lease, expires_at=0), control=control)

    async def close(self) -> None:
        """Stops everything here at once; leases are left to expire."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Starting.

    async def _start(self, key: SessionKey, request: StartTurn) -> Started:
        journal = self._runtime.journal
        patience = asyncio.get_running_loop().time() + ANSWER_SECONDS
        while True:
            standing = await answer(journal.standing, key)
            active = standing.head.turn if standing.head else None
            if active is None:
                with suppress(Conflict):
                    return Started(await self._begin(key, standing, request), created=True)
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
            await self.ask_cancel(key, active.id, "replaced by another turn", key.uid)
        await asyncio.sleep(0.05)

    async def ask_cancel(self, key: SessionKey, turn: str, reason: str, by: str) -> None:
        """Writes the wish into `control`, where the owner sees it wherever it runs; where that is here, tells it."""
        journal, now = self._runtime.journal, self._runtime.clock()
        wish = Cancel(reason, by, now)
        while True:
            control = await answer(journal.control, key)
            cancels = dict(control.cancels) if control else {}
            if turn not in cancels:
                cancels[turn] = wish
                version = control.version if control else None
                asked = Commit(control=Control(cancels, now + self._runtime.retention_ms, version))
                try:
                    await answer(journal.commit, key, asked)
                except Conflict:
                    continue
            self.cancel(key, turn, cancels[turn])
            return

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
        commit = self._fence(standing, begun, request.turn, attempts=0)
        control = standing.control
        if control and (kept := self._open_wishes(standing, control)) != control.cancels:
            commit = replace(commit, control=replace(control, cancels=kept))
        committed = await persist(runtime.journal.commit, key, replace(commit, turn=record, new_turn=True))
        agent = self._agents[request.agent]
        self._own(key, committed, state, origin, lambda live: live.run_agent(agent), _wish(control, request.turn))
        return record

    def _open_wishes(self, standing: Standing, control: Control) -> dict[str, Cancel]:
        """Without that of the turn before, which has ended, and those whose turn did not begin within the TTL."""
        ended = standing.lease.turn if standing.lease else None
        oldest = self._runtime.clock() - self._runtime.ttl_ms
        return {turn: wish for turn, wish in control.cancels.items() if turn != ended and wish.at > oldest}

    def _fence(self, standing: Standing, payload: Payload, turn: str, attempts: int) -> Commit:
        """The first event of a new epoch at head + 1, with the head and the lease that go with it."""
        runtime, now = self._runtime, self._runtime.clock()
        epoch, seq, nonce = standing.epoch + 1, standing.seq + 1, runtime.nonce()
        record = Event(seq, epoch, turn, now, payload).encode()
        old = standing.head
        head = Head(
            epoch=epoch,
            seq=old.seq if old else 0,
            turn=ActiveTurn(turn, "streaming"),
            created_at=old.created_at if old and not old.deleted else now,
            updated_at=now,
            expires_at=now + runtime.retention_ms,
            version=old.version if old else None,
        )
        version = standing.lease.version if standing.lease else None
        lease = Lease(epoch, runtime.instance, turn, attempts, now + runtime.lease_ms, nonce, version)
        return Commit(segment=Segment.of([record], nonce, now + runtime.ttl_ms), head=head, lease=lease)

    # Taking over.

    async def _take_over(self, key: SessionKey) -> None:
        runtime = self._runtime
        standing = await persist(runtime.journal.standing, key)
        if not self.orphaned(standing):
            return
        assert standing.head
        assert standing.head.turn
        turn = standing.head.turn.id
        record = await persist(runtime.journal.turn, key, turn)
        if record is None:  # the session was deleted meanwhile
            return
        attempts = standing.lease.attempts + 1 if standing.lease else 1
        fence = TurnResumed(reason="lease_expired", attempt=attempts)
        commit = self._fence(standing, fence, turn, attempts)
        try:
            committed = await persist(runtime.journal.commit, key, commit)
        except Conflict:
            return
        state = await self._recover(key, record, standing.seq)
        ending = self._ending(standing, turn)
        live = self._own(key, committed, advance(state, fence), _origin(record), lambda _: _given(ending), None)
        await asyncio.shield(live)

    async def _recover(self, key: SessionKey, record: TurnRecord, head: int) -> TurnState:
        """The turn as its events tell it up to `head`; where they are not all there any more, what its record says."""
        runtime = self._runtime
        segments: list[Segment] = []
        at = record.first - 1
        while at < head:
            page = joined(await persist(runtime.journal.read, key, at + 1, runtime.clock()), at)
            if not page:
                return state_of(record)
            segments += page
            at = page[-1].last
        folded = fold(key.session, (), Cursor(0, record.first - 1), segments)
        return folded.active or state_of(record)

    def _ending(self, standing: Standing, turn: str) -> Payload:
        wish = _wish(standing.control, turn)
        if wish:
            return TurnInterrupted(reason=wish.reason, by=wish.by)
        ran_out = standing.lease.expires_at if standing.lease else 0
        if self._runtime.clock() > ran_out + self._runtime.ttl_ms - EXPIRY_MARGIN_MS and ran_out:
            return TurnFailed(code="expired", message="the turn was left for longer than its events are kept")
        return TurnFailed(code="owner_lost", message="the instance that ran this turn is gone", retryable=True)

    # Owning.

    def _own(
        self,
        key: SessionKey,
        committed: Commit,
        state: TurnState,
        origin: Origin,
        body: Callable[[LiveTurn], Awaitable[Payload]],
        wish: Cancel | None,
    ) -> asyncio.Task[None]:
        live = LiveTurn(self._runtime, key, committed, state, origin)
        if wish:
            live.cancel(wish)
        self.live[key] = live
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
    if record.input != request.input or record.agent != request.agent:
        raise TurnConflict(f"turn {record.turn} was started with another input or agent; choose a new id")
    return record


def _wish(control: Control | None, turn: str) -> Cancel | None:
    return control.cancels.get(turn) if control else None


def _origin(record: TurnRecord) -> Origin:
    return Origin(record.first, record.started_at, record.retry_of)


async def _given(payload: Payload) -> Payload:
    return payload
