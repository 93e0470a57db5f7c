"""The turns of this instance: started, found, taken over. A turn is a task of its own; no request owns it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeVar

from pydantic import JsonValue

from legato.agents import AgentFunction
from legato.engine.asking import awaking, decided
from legato.engine.endings import last_word
from legato.engine.fences import CANCELS, documents_of, doubt_of, fence, lost_owners, newest, still_asked, why_resumed
from legato.engine.live import Body, LiveTurn
from legato.engine.past import Past
from legato.engine.records import Origin, origin_of, record_of
from legato.engine.recovery import recover
from legato.engine.runtime import ANSWER_SECONDS, PAUSE_SECONDS, Runtime, answer, persist
from legato.errors import Conflict, Draining, Invalid, JournalUnavailable, SessionBusy, TurnConflict
from legato.events import Payload, TurnFailed, TurnResumed, TurnStarted
from legato.journal import ActiveTurn, Cancel, Control, Decision, Private, SessionKey, Standing, TurnRecord
from legato.journal.wakeups import NEVER
from legato.turn import TurnState, advance

log = logging.getLogger("legato.engine")
T = TypeVar("T")
IN_THE_WAY_SECONDS: Final = 0.5
"""How long a start does not look whether the turn in its way has lost its owner, when the journal tells of nothing."""

LOOKS: Final = 5
"""How often in a row a turn that keeps moving is looked at by who wants to take it over."""


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
        self.draining = False
        self._runtime = runtime
        self._agents = agents
        self._default = default
        self._tasks: set[asyncio.Task[Any]] = set()
        self._taking: dict[SessionKey, bool] = {}  # whether to look again: there may be news since

    async def start(self, key: SessionKey, request: StartTurn) -> Started:
        """Begins a turn, or finds the one that has this id; returns when its first event is durable.

        Raises SessionBusy, TurnConflict, Invalid, Draining, JournalUnavailable. A request that goes away takes nothing
        with it.
        """
        name = request.agent or self._default
        if name not in self._agents:
            known = ", ".join(sorted(self._agents))
            raise Invalid("agent", f"there is no agent {name!r}; there are: {known}")
        self._refuse_while_draining()
        task = self._spawn(self._start(key, replace(request, agent=name)))
        try:
            async with asyncio.timeout(2 * ANSWER_SECONDS):
                return await asyncio.shield(task)
        except TimeoutError:
            raise JournalUnavailable("the journal does not answer; send the same request again") from None

    def needs_owner(self, standing: Standing) -> bool:
        """A turn is left: it streams and nobody holds its lease, or what it waits for has come."""
        turn = standing.head.turn if standing.head else None
        if turn is None or standing.owned(self._runtime.clock()):
            return False
        return turn.status == "streaming" or why_resumed(standing, turn.id, self._runtime.clock()) is not None

    async def take_over(self, key: SessionKey) -> LiveTurn | None:
        """Fences a turn that needs an owner under a new epoch and goes on with it; returns when that has begun, here or
        elsewhere, and at once where this instance drains or is at it already, which then looks again. Gives the turn
        that began by this call.

        Its agent is entered again. A turn that someone wanted cancelled ends as interrupted; one that has cost too many
        owners, or was left for too long, as failed.
        """
        if key in self.live or self.draining:
            return None
        if key in self._taking:
            self._taking[key] = True
            return None
        try:
            while True:
                self._taking[key] = False
                begun = await asyncio.shield(self._spawn(self._take_over(key)))
                if begun or not self._taking[key]:
                    return begun
        finally:
            del self._taking[key]

    def adopt(self, key: SessionKey) -> None:
        """`take_over` without waiting for it; what ends it is logged."""
        self._spawn(self._adopt(key))

    def leaves(self, key: SessionKey) -> bool:
        """This instance drains, and no turn of this session runs here that its readers may still see the end of."""
        live = self.live.get(key)
        return self.draining and (live is None or live.writer.feed.closed is not None)

    async def rest(self, seconds: float) -> None:
        """Returns when nothing runs here any more, after `seconds` at the latest."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while self._tasks and (left := until - loop.time()) > 0:
            await asyncio.wait(set(self._tasks), timeout=left)

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
            self._refuse_while_draining()
            active = standing.head.turn if standing.head else None
            if active is None:
                with suppress(Conflict):
                    return Started(await self._begin(key, standing, request), created=True)
                trust_head = False
            known = await answer(journal.turn, key, request.turn)
            if known:
                return Started(_same(known, request), created=False)
            if active:
                if request.if_active == "reject" or asyncio.get_running_loop().time() > patience:
                    if self.needs_owner(standing):
                        self.adopt(key)
                    raise SessionBusy(active.id)
                await self._make_way(key, active)

    def _refuse_while_draining(self) -> None:
        if self.draining:
            raise Draining("this instance is about to end and takes no new turns; send the same request again")

    async def _make_way(self, key: SessionKey, active: ActiveTurn) -> None:
        """Asks what stands in the way of a new turn to end; returns when it may have, or soon."""
        journal = self._runtime.journal
        await self.cancel(key, active.id, "replaced by another turn", key.uid)
        standing = await answer(journal.standing, key)
        if self.needs_owner(standing):
            await self.take_over(key)
            await asyncio.sleep(PAUSE_SECONDS)
        elif standing.head and standing.head.turn == active:
            await journal.wait(key, NEVER, standing.head.version, IN_THE_WAY_SECONDS)

    async def cancel(self, key: SessionKey, turn: str, reason: str, by: str) -> None:
        """Asks for a turn's end in `control`, where its owner sees it wherever it runs; if that is here, tells it."""
        cancel = Cancel(reason, by, self._runtime.clock())
        self.tell(key, turn, await self._ask_to_stop(key, turn, cancel))

    async def _ask_to_stop(self, key: SessionKey, turn: str, cancel: Cancel) -> Control:
        """What is asked by then; the first cancel of a turn stands."""
        journal, expires_at = self._runtime.journal, self._runtime.clock() + self._runtime.retention_ms
        while True:
            standing = await answer(journal.standing, key, trust_head=True)
            known = standing.control or Control({}, expires_at)
            if turn in known.cancels:
                return known
            cancels = newest({**known.cancels, turn: cancel}, CANCELS)
            asked = replace(known, cancels=cancels, expires_at=expires_at)
            with suppress(Conflict):
                await answer(journal.commit, key, awaking(self._runtime, standing, turn, asked))
                return asked

    async def decide(
        self, key: SessionKey, turn: str, request: str, decision: Decision, standing: Standing, *given: Private
    ) -> None:
        """Writes a person's decision where the owner finds it, and what is `given` with it. Raises Conflict where
        `standing` stands no more: the question may have been settled since that was read."""
        commit = replace(decided(self._runtime, standing, turn, request, decision), private=given)
        assert commit.control
        await answer(self._runtime.journal.commit, key, commit)
        self.tell(key, turn, commit.control)

    def tell(self, key: SessionKey, turn: str, control: Control) -> None:
        """Tells the turn, where it runs on this instance, what is asked of it."""
        live = self.live.get(key)
        if live and live.id == turn:
            live.ask_again(control)

    def cancel_here(self, key: SessionKey, turn: str, cancel: Cancel) -> None:
        """Cancels the turn where it runs on this instance, and nowhere else."""
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
        commit = replace(fence(runtime, standing, request.turn, begun), turn=record, new_turn=True)
        if (control := standing.control) and (asked := still_asked(runtime, standing, control)) != control:
            commit = replace(commit, control=asked)
        committed = await persist(runtime.journal.commit, key, commit)
        assert committed.segment
        documents = documents_of(committed, control)
        live = LiveTurn(runtime, key, documents, committed.segment, state, origin, Past(state))
        self._own(live, self._entered(request.agent))
        return record

    # Taking over.

    async def _take_over(self, key: SessionKey) -> LiveTurn | None:
        """Looks again where the session has moved on meanwhile: by another owner, or by what was written or asked."""
        for _ in range(LOOKS):
            with suppress(Conflict):
                return await self._fence(key)
        return None

    async def _fence(self, key: SessionKey) -> LiveTurn | None:
        runtime = self._runtime
        standing = await persist(runtime.journal.standing, key)
        turn = standing.head.turn if standing.head else None
        if turn is None or not self.needs_owner(standing):
            return None
        record = await persist(runtime.journal.turn, key, turn.id) or self._lost_record(standing, turn)
        attempts = lost_owners(standing)
        resumed = TurnResumed(reason=why_resumed(standing, turn.id, runtime.clock()) or "released", attempt=attempts)
        found = await persist(recover, runtime, key, record, standing.seq)
        commit = fence(runtime, standing, turn.id, resumed, attempts=attempts)
        committed = await persist(runtime.journal.commit, key, commit)
        assert committed.segment
        last = last_word(runtime, standing, turn.id, attempts, found.whole)
        past = Past(found.state, found.steps, doubt_of(standing), found.notes)
        state = advance(found.state, resumed)
        documents = documents_of(committed, standing.control)
        live = LiveTurn(runtime, key, documents, committed.segment, state, origin_of(record), past, found.credentials)
        self._own(live, _given(last) if last else self._entered(record.agent))
        return live

    def _lost_record(self, standing: Standing, turn: ActiveTurn) -> TurnRecord:
        """In place of the record of a turn that was left for so long that it has expired."""
        now = self._runtime.clock()
        expires_at = now + self._runtime.retention_ms
        return TurnRecord(turn.id, turn.status, self._default, None, standing.seq + 1, now, expires_at)

    def _entered(self, agent: str) -> Body:
        """What runs the agent; where this instance does not have it, the turn cannot be gone on with."""
        found = self._agents.get(agent)
        if found is None:
            message = f"no agent {agent!r} is served any more"
            return _given(TurnFailed(code="agent_unknown", message=message))
        return lambda live: live.run_agent(found)

    # Owning.

    def _own(self, live: LiveTurn, body: Body) -> None:
        known = self.live.get(live.key)
        if known is None or known.holding.epoch < live.holding.epoch:  # else its answer came after its lease had gone
            self.live[live.key] = live
        self._spawn(self._live(live, body)).add_done_callback(lambda _: live.over.set())

    async def _live(self, live: LiveTurn, body: Body) -> None:
        try:
            await live.live(body)
        except Exception:
            log.exception("turn %s stopped unexpectedly; it is left to another owner", live.id)
        finally:
            if self.live.get(live.key) is live:
                del self.live[live.key]
        if live.writer.state.status == "waiting":  # what it waits for may have come while it was put to rest
            await self._adopt(live.key)

    async def _adopt(self, key: SessionKey) -> None:
        try:
            await self.take_over(key)
        except Exception:
            log.exception("session %s of %s cannot be taken over", key.session, key.uid)

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
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


def _given(payload: Payload) -> Body:
    async def body(_: LiveTurn) -> Sequence[Payload]:
        return [payload]

    return body
