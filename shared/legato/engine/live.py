"""Turns of this instance: started, run to their end, taken over. A turn is a task of its own; no request owns it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from legato.agents import AgentFunction
from legato.engine.fences import cancel_of
from legato.engine.lease import Holding
from legato.engine.open_turn import OpenTurn
from legato.engine.records import Origin, record_of
from legato.engine.runtime import Runtime, persist
from legato.engine.writer import Writer
from legato.errors import JournalRejected, LeaseLost, LegatoError, ModelFailed, Refused, ToolFailed
from legato.events import Payload, Record, TurnCompleted, TurnFailed, TurnInterrupted
from legato.journal import Cancel, Commit, SessionKey, TurnRecord
from legato.text import brief
from legato.turn import TurnState

log = logging.getLogger("legato.engine")

GRACE_SECONDS = 5.0
"""How long an agent that was cancelled may take to end before the turn ends without it."""


class LiveTurn:
    """One turn that this instance owns, from its fence to its terminal event or the loss of its lease."""

    def __init__(self, runtime: Runtime, key: SessionKey, committed: Commit, state: TurnState, origin: Origin) -> None:
        """`committed` is the Commit of the fence; `state` is the turn up to and with it."""
        assert committed.segment
        assert committed.head
        assert committed.lease
        self.key = key
        self.origin = origin
        self.holding = Holding(runtime, key, committed.lease)
        self.writer = Writer(runtime, key, self.holding, committed.head, state, committed.segment)
        self.turn = OpenTurn(key, self.writer, self.holding, runtime.settings.text_bytes, runtime.settings.result_bytes)
        self._runtime = runtime
        self._cancel: Cancel | None = None
        self._cancelled = asyncio.Event()

    @property
    def id(self) -> str:
        return self.writer.turn

    def cancel(self, cancel: Cancel) -> None:
        """Asks model, tools and agent to stop. Only the first one counts."""
        if self._cancel is None:
            self._cancel = cancel
            self.turn.cancelled = True
            self._cancelled.set()

    async def live(self, body: Callable[[LiveTurn], Awaitable[Payload]]) -> None:
        """Runs `body`, whose answer is the terminal event, and commits that; returns when the turn is over here."""
        background = [asyncio.create_task(work) for work in (self.writer.pump(), self.holding.keep(), self._watch())]
        main = asyncio.create_task(self._to_its_end(body))
        lost = asyncio.create_task(self.holding.lost.wait())
        try:
            await asyncio.wait({main, lost}, return_when=asyncio.FIRST_COMPLETED)
            if lost.done() and not main.done():
                self.writer.feed.close("lease")
                main.cancel()
            await main
            self.writer.feed.close("ended")
        except LeaseLost:
            log.warning("turn %s: the lease went to another instance", self.id)
        except LegatoError as failure:
            log.error("turn %s cannot be journaled and is left to another owner: %s", self.id, failure)
        except asyncio.CancelledError:
            if not lost.done():
                raise
        finally:
            self.writer.feed.close(self.writer.feed.closed or "lease")
            await _stop(main, lost, *background)

    async def run_agent(self, agent: AgentFunction) -> Payload:
        """The agent's work, cancelled when someone asks for it; gives the terminal event that its end deserves."""
        if self._cancel:
            return TurnInterrupted(reason=self._cancel.reason, by=self._cancel.by)
        task = asyncio.create_task(_guarded(agent, self.turn))
        asked = asyncio.create_task(self._cancelled.wait())
        try:
            await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                await self.turn.close()
                return self._verdict(task)
            await self._tear_down(task)
        except asyncio.CancelledError:
            await self._tear_down(task)
            raise
        finally:
            asked.cancel()
        assert self._cancel is not None
        return TurnInterrupted(reason=self._cancel.reason, by=self._cancel.by)

    async def _to_its_end(self, body: Callable[[LiveTurn], Awaitable[Payload]]) -> None:
        await self.writer.finish(await body(self), self._ending)

    async def _tear_down(self, task: asyncio.Task[None]) -> None:
        """Cancels the agent and waits: while a `once` tool runs (its timeout bounds that), else GRACE_SECONDS."""
        task.cancel()
        while not task.done():
            await asyncio.wait({task}, timeout=GRACE_SECONDS)
            if not task.done() and not self.turn.holds_once:
                log.error("turn %s: the agent does not end after its cancellation; going on without it", self.id)
                break
        task.add_done_callback(_forget)
        await self.turn.close()

    def _verdict(self, task: asyncio.Task[None]) -> Payload:
        if task.cancelled():
            return _failed(self.id, asyncio.CancelledError("the agent cancelled itself"))
        failure = task.exception()
        if failure is None:
            return self._completed()
        if isinstance(failure, LeaseLost | JournalRejected):
            raise failure
        return _failed(self.id, failure)

    def _completed(self) -> Payload:
        self.turn.close_text()
        return TurnCompleted(text=self.writer.state.text, usage=self.turn.usage, finish_reason=self.turn.finish_reason)

    def _ending(self, state: TurnState, terminal: Record) -> TurnRecord:
        now = self._runtime.clock()
        return record_of(state, self.origin, terminal.seq, now, now + self._runtime.retention_ms)

    async def _watch(self) -> None:
        """Looks for a cancel that came through another instance. A look that is refused is not the last one."""
        while True:
            try:
                control = await persist(self._runtime.journal.control, self.key)
            except JournalRejected as refused:
                log.warning("turn %s: cannot see whether it is cancelled: %s", self.id, refused)
            else:
                if cancel := cancel_of(control, self.id):
                    self.cancel(cancel)
            await asyncio.sleep(self._runtime.settings.control_poll)


async def _guarded(agent: AgentFunction, turn: OpenTurn) -> None:
    """A task that raises SystemExit or KeyboardInterrupt would end the process and every other turn with it."""
    try:
        await agent(turn)
    except (SystemExit, KeyboardInterrupt) as raised:
        raise RuntimeError(f"the agent raised {type(raised).__name__}") from raised


def _failed(turn: str, failure: BaseException) -> TurnFailed:
    if isinstance(failure, ModelFailed):
        return TurnFailed(code=brief(failure.code), message=brief(str(failure)), retryable=failure.retryable)
    if isinstance(failure, Refused | ToolFailed):
        return TurnFailed(code=brief(failure.code), message=brief(str(failure)))
    log.error("turn %s: the agent failed", turn, exc_info=failure)
    return TurnFailed(code="agent_error", message=f"the agent raised {type(failure).__name__}")


def _forget(task: asyncio.Task[None]) -> None:
    """What an agent says that nobody listens to any more is no error."""
    if not task.cancelled():
        task.exception()


async def _stop(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
