"""One turn that runs here: from its fence to its last events, a hand-back, or the loss of its lease."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from legato.agents import AgentFunction
from legato.engine.calls import Calls
from legato.engine.endings import answered, rest
from legato.engine.fences import cancel_of
from legato.engine.lease import Holding
from legato.engine.open_turn import OpenTurn
from legato.engine.past import Past
from legato.engine.questions import Questions
from legato.engine.records import Origin
from legato.engine.runtime import Runtime, persist
from legato.engine.supplies import Home, Kept, Supplies
from legato.engine.writer import Writer
from legato.errors import JournalRejected, LeaseLost, LegatoError, ModelFailed, Refused, StepFailed, ToolFailed
from legato.events import Payload, TurnCompleted, TurnFailed, TurnInterrupted, TurnSuspended
from legato.journal import Cancel, Control, Segment, SessionKey, Standing
from legato.text import brief
from legato.turn import TurnState

log = logging.getLogger("legato.engine")

GRACE_SECONDS = 5.0
"""How long an agent that was cancelled may take to end before the turn ends without it."""
HAND_BACK_SECONDS = 0.3
"""The same for an agent whose turn is handed back, and once more for the calls that it left running."""


class HandedBack(Exception):
    """The agent has been stopped for the turn to go on elsewhere: it has no terminal event here."""


LOOK_SECONDS = 60.0
"""How long an owner does not look what is asked of it when the journal tells of nothing."""
REFUSED_SECONDS = 2.0


Body = Callable[["LiveTurn"], Awaitable[Sequence[Payload]]]
"""What is done between a turn's fence and its last events, which it gives."""


class LiveTurn:
    """One turn that this instance owns, from its fence to its terminal event or the loss of its lease."""

    def __init__(
        self, runtime: Runtime, key: SessionKey, committed: Standing, fence: Segment, state: TurnState,
        origin: Origin, past: Past, credentials: Mapping[str, Kept] | None = None,
    ) -> None:  # fmt: skip
        """`fence` began this epoch, `committed` are the documents since then, `state` is the turn up to and with it,
        `credentials` are kept for it."""
        assert committed.lease
        self.key = key
        self.over = asyncio.Event()
        self.origin = origin
        self.holding = Holding(runtime, key, committed.lease)
        self.writer = Writer(runtime, key, self.holding, committed, state, fence)
        self.questions = Questions(state, answered(committed.control, state.turn))
        self.supplies = Supplies(runtime, Home(key, state.turn, origin.first), credentials or {})
        self.calls = Calls(runtime, key, self.writer, self.holding, past, self.questions, self.supplies, origin.first)
        self.turn = OpenTurn(runtime, key, self.writer, self.calls, past, origin)
        self._past = past
        self._runtime = runtime
        self._since = runtime.clock() if origin.waited else origin.started_at
        self._stopped: Payload | None = None
        self._stopping = asyncio.Event()
        if cancel := cancel_of(committed.control, state.turn):
            self.cancel(cancel)

    @property
    def id(self) -> str:
        return self.writer.turn

    def cancel(self, cancel: Cancel) -> None:
        """Asks model, tools and agent to stop. Only the first one counts."""
        self._stop(TurnInterrupted(reason=cancel.reason, by=cancel.by))

    def _stop(self, ending: Payload) -> None:
        if self._stopped is None:
            self._stopped = ending
            self.calls.cancelled = True
            self._stopping.set()

    def ask_again(self, control: Control | None) -> None:
        """Takes up what outsiders ask of the turn."""
        if cancel := cancel_of(control, self.id):
            self.cancel(cancel)
        self.questions.decide(answered(control, self.id))

    @property
    def _handed_back(self) -> bool:
        return self._stopping.is_set() and self._stopped is None

    def hand_back(self) -> None:
        """Stops the agent here and gives the lease up, so that another instance goes on with the turn.

        A `once` tool that runs is let finish and recorded first; where one is in doubt the lease is left to expire. A
        turn that ends already is left to that. No tool is told that the turn is cancelled: it is not.
        """
        self._stopping.set()

    async def live(self, body: Body) -> None:
        """Runs `body`, whose answer is the terminal event, and commits that; returns when the turn is over here."""
        works = (self.writer.pump(), self.holding.keep(), self._watch(), self._limit())
        background = [asyncio.create_task(work) for work in works]
        main = asyncio.create_task(self._to_its_end(body))
        lost = asyncio.create_task(self.holding.lost.wait())
        try:
            await asyncio.wait({main, lost}, return_when=asyncio.FIRST_COMPLETED)
            if lost.done() and not main.done():
                self.writer.feed.close("lease")
                main.cancel()
            self.writer.feed.close(await main)
        except LeaseLost:
            log.warning("turn %s: the lease went to another instance", self.id)
        except LegatoError as failure:
            log.error("turn %s cannot be journaled and is left to another owner: %s", self.id, failure)
        except asyncio.CancelledError:
            if not lost.done():
                raise
        finally:
            self.writer.feed.close(self.writer.feed.closed or "lease")
            await _end(main, lost, *background)

    async def run_agent(self, agent: AgentFunction) -> Sequence[Payload]:
        """The agent's work, ended when someone cancels it, it takes too long, or nothing is left to do before a person
        has answered.

        Gives the last events that its end deserves.
        """
        if self._stopped:
            return [self._stopped]
        await self.turn.enter()
        task = asyncio.create_task(_guarded(agent, self.turn))
        asked = [asyncio.create_task(event.wait()) for event in (self._stopping, self.calls.quiet)]
        try:
            await asyncio.wait({task, *asked}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                await self.turn.close()
                return [self._verdict(task)]
            if self._handed_back and self.calls.hold_lease:
                self.holding.leave()
            await self._tear_down(task, HAND_BACK_SECONDS if self._handed_back else GRACE_SECONDS)
        except asyncio.CancelledError:
            await self._tear_down(task, GRACE_SECONDS)
            raise
        finally:
            for waiting in asked:
                waiting.cancel()
        if self._handed_back:
            raise HandedBack
        if self._stopped:
            return [self._stopped]
        settled = self.questions.settled(self._runtime.clock())
        return [*settled, *self.questions.new, TurnSuspended(reason=self.questions.reason)]

    async def _to_its_end(self, body: Body) -> str:
        """The reason to close the feed with."""
        try:
            ending = await body(self)
        except HandedBack:
            await self.writer.flush()
            if self.calls.hold_lease:
                await self.holding.renew()
            else:
                await self.writer.release()
            return "draining"
        last = partial(rest, self._runtime, self.origin, self.turn.left(), self.supplies.names)
        await self.writer.finish(ending, last)
        return "ended" if self.writer.state.ended else "suspended"

    async def _tear_down(self, task: asyncio.Task[None], grace: float) -> None:
        """Cancels the agent, then the calls that it left running, and waits for each in bounds."""
        task.cancel()
        await self._bounded(task, grace)
        task.add_done_callback(_forget)
        closing = asyncio.create_task(self.turn.close())
        try:
            await self._bounded(closing, grace)
        finally:
            closing.cancel()

    async def _bounded(self, task: asyncio.Task[None], grace: float) -> None:
        """Waits for `task`: while a `once` tool runs (its timeout bounds that), else `grace` seconds."""
        while not task.done():
            await asyncio.wait({task}, timeout=grace)
            if not task.done() and not self.calls.running_once:
                log.error("turn %s: the agent does not end after its cancellation; going on without it", self.id)
                break

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
        try:
            self._past.check()
        except Refused as diverged:
            return _failed(self.id, diverged)
        self.turn.close_text()
        return TurnCompleted(text=self.writer.state.text, usage=self.turn.usage, finish_reason=self.turn.finish_reason)

    async def _watch(self) -> None:
        """Looks for what was asked through another instance. A look that is refused is not the last one."""
        while True:
            try:
                control = await persist(self._runtime.journal.control, self.key)
            except JournalRejected as refused:
                log.warning("turn %s: cannot see what is asked of it: %s", self.id, refused)
                await asyncio.sleep(REFUSED_SECONDS)
                continue
            self.ask_again(control)
            await self._runtime.journal.wait_control(self.key, control and control.version, LOOK_SECONDS)

    async def _limit(self) -> None:
        """Stops a turn that lasts too long, counted from its start, whoever owned it meanwhile.

        One that has waited for a person is counted from here on: how long people think is no matter of this bound.
        """
        most = self._runtime.settings.turn_seconds
        await asyncio.sleep(most - (self._runtime.clock() - self._since) / 1000)
        message = f"the turn took longer than {most:g} s (LEGATO_TURN_SECONDS)"
        self._stop(TurnFailed(code="turn_too_long", message=message))


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
    kind = failure.kind if isinstance(failure, StepFailed) else type(failure).__name__
    return TurnFailed(code="agent_error", message=f"the agent raised {kind}")


def _forget(task: asyncio.Task[None]) -> None:
    """What an agent says that nobody listens to any more is no error."""
    if not task.cancelled():
        task.exception()


async def _end(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
