"""The calls of a running turn: made durable, run, asked about, settled one by one.

Rules of this file:
- No tool starts before its `tool.call` is in the journal, nor while the lease is in doubt.
- A call that an earlier owner left unsettled is settled by its effect: `read` and `idempotent` run again with the same
  key, `once` does not. It is in doubt once its owner cannot be at it any more: its `reconcile` tells, or a person.
- What has begun and may not be repeated is let finish, whoever is cancelled meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, TypeVar

from pydantic import JsonValue
from pydantic_core import to_json

from legato.agents import Call
from legato.credentials import UNAVAILABLE
from legato.engine.lease import Holding
from legato.engine.past import NOTE, Past, Recorded, text_of
from legato.engine.questions import EXPIRY, Question, Questions, resolved
from legato.engine.runtime import Runtime
from legato.engine.supplies import NO_KEYS, REJECTED, Given, Supplies
from legato.engine.writer import Writer
from legato.events import ApprovalRequested, CredentialRequired, ToolCall, ToolProgress, ToolResult
from legato.journal import Decision, Private, SessionKey
from legato.text import brief, clean_json
from legato.tools import GRACE_SECONDS, Outcome, Tool, ToolContext

T = TypeVar("T")
PROGRESS_SECONDS: Final = 0.1
CALL_BYTES: Final = 512
"""What a `tool.call` is counted as besides its arguments."""
APPROVAL: Final = "approval"
IN_DOUBT: Final = "in_doubt"
RECONCILE: Final = "reconcile"
"""Who closed a question about a call in doubt that its tool could answer after all."""
EXPIRED: Final = "credential_expired"


class Intent:
    """A call as the journal has it. `known` says what an earlier owner left of it; `problem` why it is not made."""

    __slots__ = ("call", "in_doubt", "outcome", "problem", "tool")

    def __init__(self, call: ToolCall, tool: Tool | None, problem: str | None = None) -> None:
        self.call, self.tool, self.problem = call, tool, problem
        self.outcome: Outcome | None = None
        self.in_doubt = False


class Calls:
    """What one turn's tools do. `at_work` counts calls and steps that wait for no person."""

    def __init__(
        self,
        runtime: Runtime,
        key: SessionKey,
        writer: Writer,
        holding: Holding,
        past: Past,
        questions: Questions,
        supplies: Supplies,
        first: int,
    ) -> None:
        """`first` is the turn's first seq."""
        self.cancelled = False
        self.quiet = asyncio.Event()
        self._at_work = 0
        self._runtime = runtime
        self._session = key.session
        self._writer = writer
        self._holding = holding
        self._past = past
        self._questions = questions
        self._supplies = supplies
        self._closing = asyncio.Lock()
        self._first = first
        self.running_once = 0
        self._in_effect = set(past.unsettled_once) if past.doubt else set[str]()

    @property
    def hold_lease(self) -> bool:
        """A `once` call may be having its effect, or have had it untold: whoever comes next must know by the lease."""
        return bool(self._in_effect)

    def intend(self, request: Call, step: int, number: int, room: int) -> tuple[Intent, bool]:
        """The call as it is recorded, or as it will be; and whether it is new. Its arguments may have `room` bytes."""
        arguments, problem = (None, request.problem) if request.problem else _told(request.arguments, room)
        name = brief(request.name)
        known = self._past.call(name, arguments)
        if known is None:
            effect = request.tool.effect if request.tool else "read"
            new = ToolCall(step=step, call=f"{step}-{number}", name=name, arguments=arguments, effect=effect)
            return Intent(new, request.tool, problem), True
        call = ToolCall(step=known.step, call=known.call, name=name, arguments=arguments, effect=known.effect)
        intent = Intent(call, request.tool, problem)
        if known.status in ("ok", "error"):
            note = self._past.notes.get(known.call)
            intent.outcome = Outcome(known.status == "ok", known.content, known.error, note=note)
        else:
            intent.in_doubt = self._in_doubt(intent)
        return intent, False

    def start_work(self, count: int = 1) -> None:
        self._at_work += count
        self.quiet.clear()

    def end_work(self) -> None:
        self._at_work -= 1
        self._look()

    async def settle(self, intent: Intent) -> Outcome:
        """Brings one call to its outcome, which is recorded when this returns."""
        if intent.outcome is None:
            outcome = await self._outcome(intent)
            await self._record(intent.call, outcome)
            return outcome
        return intent.outcome

    async def _outcome(self, intent: Intent) -> Outcome:
        if intent.problem:
            return Outcome.failed("bad_arguments", intent.problem)
        tool = intent.tool
        if tool is None:
            code = "outcome_unknown" if intent.in_doubt else "unknown_tool"
            return Outcome.failed(code, f"there is no tool {intent.call.name!r}")
        if intent.in_doubt:
            settled = await self._resolve_doubt(intent, tool)
        else:
            settled = await self._refused(intent.call, tool)
        if settled is None:
            settled = await self._make(intent.call, tool)
        if settled.unfinished and tool.effect == "once":
            return await self._resolve_doubt(intent, tool, running=settled) or await self._make(intent.call, tool)
        return settled

    # Running.

    async def _make(self, intent: ToolCall, tool: Tool) -> Outcome:
        """Runs it, once its user has given what it needs. There is no doubt about it any more, or not yet."""
        self._in_effect.discard(intent.call)
        lacking = await self._lacking(intent, tool)
        if lacking:
            return lacking
        given = self._supplies.given(tool)
        outcome = await self._run(intent, tool, given)
        if outcome.error and outcome.error.code == REJECTED:
            given.refuse()
        return outcome

    async def _run(self, intent: ToolCall, tool: Tool, given: Given) -> Outcome:
        await self._holding.assure()
        progress = _Progress(self._writer, intent.call)
        credential = lambda name: given.get(name) or self._runtime.credential(name)  # noqa: E731
        context = ToolContext(self._key(intent), progress, lambda: self.cancelled, credential)
        limit = self._runtime.settings.result_bytes
        ready = self._holding.assure  # in the very moment: a process may stand for an hour between two lines
        work = tool.run(intent.arguments, context, result_bytes=limit, ready=ready, still=self._may_begin)
        running = asyncio.ensure_future(work)
        if tool.effect != "once":
            return await running
        self._in_effect.add(intent.call)
        self.running_once += 1
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            # What has begun and may not be repeated is let finish, within its own timeout, and recorded.
            await ended(running)
            if not running.result().unfinished:  # else it may still be at work, and stays in doubt
                await self._record(intent, running.result())
            raise
        finally:
            self.running_once -= 1

    async def _record(self, intent: ToolCall, outcome: Outcome) -> None:
        result = ToolResult(call=intent.call, ok=outcome.ok, content=outcome.content, error=outcome.error)
        private = (*self._noted(intent, outcome), *self._supplies.take_refused())
        await self._writer.commit(result, private=private)
        self._in_effect.discard(intent.call)

    def _noted(self, intent: ToolCall, outcome: Outcome) -> tuple[Private, ...]:
        if outcome.note is None:
            return ()
        text = text_of(Recorded(self._first, intent.step, outcome.note))
        expires_at = self._runtime.clock() + self._runtime.retention_ms
        return (Private(self._writer.turn, f"{NOTE}{intent.call}", text, expires_at),)

    def _may_begin(self) -> bool:
        """As a thread sees it that has come free: the lease may have gone meanwhile, or the turn been cancelled."""
        return self._holding.live and not self.cancelled

    def _key(self, intent: ToolCall) -> str:
        return f"{self._session}/{self._writer.turn}/{intent.call}"

    # Asking.

    async def _refused(self, intent: ToolCall, tool: Tool) -> Outcome | None:
        """None: it may run. A tool that needs a person's approval is not started before that is durable."""
        prompt = tool.asks(intent.arguments)
        if prompt is None:
            return None
        known = self._questions.of(intent.call, APPROVAL)
        if known is None or known.approved is None:
            decision = await self._ask(self._question(intent, APPROVAL, known.request if known else None, prompt))
        else:
            decision = Decision(known.approved, known.by or "", known.note, 0)
        return None if decision.approved else _denied(decision)

    async def _resolve_doubt(self, intent: Intent, tool: Tool, running: Outcome | None = None) -> Outcome | None:
        """The outcome of a call that may have had its effect; None: it had none, or a person wants it made again."""
        await self._wait_for_its_end(tool, running)
        known = self._questions.of(intent.call.call, IN_DOUBT)
        request = known.request if known and known.approved is None else None
        prompt = f"{tool.name} may or may not have been done. Do it again?"
        question = self._question(intent.call, IN_DOUBT, request, prompt)
        if tool.reconcile:
            told = await tool.reconciled(self._key(intent.call), self._runtime.settings.result_bytes)
            if told is not None and (told.outcome or running is None):
                may = Decision(told.outcome is None, RECONCILE, None, self._runtime.clock())
                if request:
                    may = await self._settle(question, may)
                    await self._close(question, may)
                return told.outcome if told.outcome or may.approved else _unknown()
        decision = await self._ask(question)
        return None if decision.approved else _unknown()

    async def _wait_for_its_end(self, tool: Tool, running: Outcome | None) -> None:
        """An owner that was cut off stops a tool at its timeout, counted from the last moment it could start one, and
        then lets it end."""
        if running is None and self._past.doubt:
            over = self._past.doubt.since + (tool.timeout + GRACE_SECONDS) * 1000
            await asyncio.sleep(max(0.0, (over - self._runtime.clock()) / 1000))

    def _question(self, intent: ToolCall, kind: str, request: str | None, prompt: str) -> ApprovalRequested:
        """`request` names the one that is open already."""
        return ApprovalRequested(
            request=request or self._questions.next_request(intent.call),
            call=intent.call,
            kind=kind,
            prompt=prompt,
            expires_at=self._runtime.clock() + self._runtime.approval_ms,
        )

    async def _lacking(self, intent: ToolCall, tool: Tool) -> Outcome | None:
        """None: what only its user can give it is here. It is asked for once, whoever else needs it too."""
        for name in self._supplies.of(tool) if tool.can_take(intent.arguments) else ():
            while question := self._questions.credential(name) or self._required(name, tool):
                if self._runtime.vault is None:
                    return await self._withdrawn(question)
                if not (await self._ask(question)).approved:
                    return Outcome.failed(EXPIRED, f"nobody gave credential {name!r} in time")
                if self._supplies.value(name) is None:
                    await self._supplies.read(name)
        return None

    def _required(self, name: str, tool: Tool) -> CredentialRequired | None:
        """None: it has been given, and still counts."""
        if self._supplies.value(name):
            return None
        expires_at = self._runtime.clock() + self._runtime.approval_ms
        return CredentialRequired(name=name, reason=f"{tool.name} needs it", expires_at=expires_at)

    async def _withdrawn(self, question: CredentialRequired) -> Outcome:
        """This instance could not keep what is given."""
        if self._questions.is_open(question):
            withdrawn = Decision(False, NO_KEYS, None, self._runtime.clock())
            await self._close(question, await self._settle(question, withdrawn))
        return Outcome.failed(UNAVAILABLE, f"credential {question.name!r} cannot be asked for: {NO_KEYS}")

    async def _ask(self, question: Question) -> Decision:
        now = self._runtime.clock()
        if self._questions.expired(question.request, now):
            await self._settle(question, Decision(False, EXPIRY, None, now))
        answer = self._questions.put(question)
        self.end_work()
        try:
            decision = await answer
        finally:
            self.start_work()
        await self._close(question, decision)
        return decision

    async def _settle(self, question: Question, decision: Decision) -> Decision:
        """The decision that counts, where no person has made one: first come, as between persons."""
        made = await self._holding.settle(question.request, decision)
        self._questions.decide({question.request: made})
        return made

    async def _close(self, question: Question, decision: Decision) -> None:
        """Of those who wait for the same answer the first one says that it is here, and none goes on before."""
        async with self._closing:
            if self._questions.is_open(question):
                await self._writer.commit(resolved(question, decision))
                self._questions.close(question, decision)

    def _look(self) -> None:
        """Nothing is left to do before a person answers. A doubt that nobody was asked about yet would be forgotten
        with the lease."""
        if self._at_work or not self._questions.open or not self._in_effect <= self._questions.calls:
            return
        if self._questions.taken_up(self._runtime.clock()):
            self.quiet.set()

    def _in_doubt(self, intent: Intent) -> bool:
        """It may have begun: its owner did not let go by itself, or a person was asked about it already."""
        if intent.call.effect != "once" or self._supplies.never_had(intent.tool):
            return False
        asked = self._questions.of(intent.call.call, IN_DOUBT)
        if asked and asked.approved is None:
            return True
        approval = self._questions.of(intent.call.call, APPROVAL)
        needed = intent.tool is not None and intent.tool.asks(intent.call.arguments) is not None
        return self._past.doubt is not None and (not needed or bool(approval and approval.approved))


class _Progress:
    """A call's progress events, at most one in PROGRESS_SECONDS; those in between are not kept."""

    def __init__(self, writer: Writer, call: str) -> None:
        self._writer = writer
        self._call = call
        self._next = 0.0

    def __call__(self, message: str | None, fraction: float | None) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._next or not self._writer.ready or not self._writer.state.accepts("tool.progress"):
            return
        self._next = now + PROGRESS_SECONDS
        self._writer.show(ToolProgress(call=self._call, message=message, fraction=fraction))


def _unknown() -> Outcome:
    return Outcome.failed("outcome_unknown", "whether the call had its effect is not known; it was not repeated")


def _denied(decision: Decision) -> Outcome:
    by = "nobody decided in time" if decision.by == EXPIRY else f"denied by {decision.by}"
    return Outcome.failed("denied", f"{by}: {decision.note}" if decision.note else by)


def _told(arguments: JsonValue, limit: int) -> tuple[JsonValue, str | None]:
    """What the journal says of a call's arguments; null, and why, where no journal can hold them."""
    try:
        clean = clean_json(arguments)
    except ValueError as wrong:
        return None, str(wrong)
    size = _size(clean)
    if size <= limit:
        return clean, None
    return None, f"the arguments are {size} bytes of JSON, at most {max(limit, 0)} fit beside the calls made with it"


def cost(call: ToolCall) -> int:
    """What a call takes of the bytes that calls made together have, so that they fit one Commit."""
    return CALL_BYTES + _size(call.arguments)


def _size(value: JsonValue) -> int:
    """Bytes of JSON as an event has it, where U+2028 and U+2029 are escaped."""
    data = to_json(value)
    return len(data) + 3 * (data.count(b"\xe2\x80\xa8") + data.count(b"\xe2\x80\xa9"))


async def ended(*tasks: asyncio.Task[T]) -> None:
    """Returns when all have ended, however often whoever waits is cancelled; their own timeouts bound the wait."""
    while not all(task.done() for task in tasks):
        with suppress(asyncio.CancelledError):
            await asyncio.wait(tasks)


async def together(tasks: Sequence[asyncio.Task[T]]) -> list[T]:
    """What all of `tasks` give; when cancelled, cancels each and waits until each has ended. One failure is raised, and
    none goes unseen."""
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await ended(*tasks)
        raise
    finally:
        for task in tasks:
            if task.done() and not task.cancelled():
                task.exception()
    return [task.result() for task in tasks]
