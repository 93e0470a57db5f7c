"""Tools: a function becomes something a model can call, and every way a call can end becomes an `Outcome`."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import re
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, get_args, overload

from pydantic import JsonValue

from legato.errors import ToolFailed
from legato.events import ID_PATTERN, Effect
from legato.foreign import FAILURES, cancelled
from legato.principal import Principal
from legato.signature import BadArguments, BadResult, Signature
from legato.text import brief, words_of
from legato.threads import Threads
from legato.tool_context import Outcome, ToolContext

__all__ = ["Allow", "Outcome", "Reconcile", "Tool", "ToolContext", "tool"]

log = logging.getLogger("legato.tools")
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_THREADS: Final = Threads(40, "legato-tool")
_JUDGES: Final = Threads(8, "legato-allow")
"""Apart: tools that hold every thread of theirs must not make `allow` late."""
GRACE_SECONDS: Final = 5.0
"""How long an async tool may take to end once it was cancelled at its timeout."""
ALLOW_SECONDS: Final = 10.0
"""How long `allow` may take; a call that it does not judge by then is refused."""
NOTE_BYTES: Final = 256 * 1024
"""What a call may leave for its agent alone: it is committed beside its result."""

Reconcile = Callable[[str], Any]
Approval = str | Callable[[dict[str, Any]], str | None] | None
Allow = Callable[[Principal, dict[str, Any]], bool | Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What `reconcile` told of a call in doubt: its outcome, None when it had no effect."""

    outcome: Outcome | None


@dataclass(frozen=True, eq=False)
class Tool:
    """A function that a model can call, made by `tool`. Calling it calls the function, as a user's own test would."""

    name: str
    description: str
    effect: Effect
    timeout: float
    function: Callable[..., Any] = field(repr=False)
    signature: Signature = field(repr=False)
    reconcile: Reconcile | None = field(repr=False, default=None)
    approval: Approval = field(repr=False, default=None)
    allow: Allow | None = field(repr=False, default=None)
    credentials: tuple[str, ...] = ()

    @property
    def parameters(self) -> dict[str, JsonValue]:
        """The JSON schema of the arguments."""
        return self.signature.schema

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    async def run(
        self,
        arguments: JsonValue,
        context: ToolContext,
        *,
        result_bytes: int = 2 * 1024 * 1024,
        grace: float = GRACE_SECONDS,
        threads: Threads = _THREADS,
        ready: Callable[[], Awaitable[None]] | None = None,
        still: Callable[[], bool] = lambda: True,
    ) -> Outcome:
        """Makes one call; however it ends, that is its outcome. Raises CancelledError, and what `ready` does.

        Codes: `bad_arguments` (the function is never entered), `bad_result`, `result_too_large` (`result_bytes`, as
        UTF-8 JSON), `timeout`, `busy` (no thread came free in time, never entered), `tool_failed`, a ToolFailed's own.
        An async function is cancelled at its timeout and then has `grace` seconds to end. A sync function runs in a
        thread, which nothing can stop: it is given up, `turn.cancelled` tells it so, and it may still be at work.
        `ready` is awaited in the moment before the function is entered, or waits for a thread; what it raises is raised
        here. A thread that comes free asks `still`, and does not enter the function if it may not be begun any more.
        """
        try:
            args, kwargs = self.signature.bind(arguments, {"key": context.key, "turn": context})
        except BadArguments as wrong:
            return Outcome.failed("bad_arguments", str(wrong))
        body, judge = partial(self.function, *args, **kwargs), partial(self._judge, result_bytes)
        context.open()
        try:
            if self.signature.is_async:
                outcome = await self._in_task(_attempt(ready, body, judge), context, grace)
            else:
                if ready:
                    await ready()
                outcome = await self._in_thread(partial(_attempt_in_thread, still, body, judge), context, threads)
            return context.noted(outcome, NOTE_BYTES)
        finally:
            context.close()

    async def allows(self, principal: Principal, arguments: JsonValue) -> bool:
        """Whether `principal` may call it with these arguments: not where `allow` fails, is late or gives no bool.

        It is given what the function would be. Raises BadArguments where there is nothing to judge.
        """
        if self.allow is None:
            return True
        values = self.signature.values(arguments)
        try:
            async with asyncio.timeout(ALLOW_SECONDS):
                said = await _called(_JUDGES, self.allow, principal, values)
        except FAILURES as error:
            if cancelled():
                raise
            log.error("tool %s: allow failed, and the call is refused: %s", self.name, type(error).__name__)
            return False
        if not isinstance(said, bool):
            log.error("tool %s: allow gave no bool, and the call is refused: %s", self.name, type(said).__name__)
        return said is True

    def can_take(self, arguments: JsonValue) -> bool:
        """A call with these arguments can be made."""
        return self.signature.fits(arguments)

    def asks(self, arguments: JsonValue) -> str | None:
        """What a person is asked before a call with these arguments; None where nobody has to be, or it cannot be made.

        A person is asked all the same where `approval` itself fails.
        """
        if self.approval is None or not isinstance(arguments, dict) or not self.can_take(arguments):
            return None
        if isinstance(self.approval, str):
            return self.approval
        try:
            prompt = self.approval(deepcopy(arguments))
        except FAILURES as error:
            if cancelled():
                raise
            log.warning("tool %s: approval(%r) failed: %s: %s", self.name, arguments, type(error).__name__, error)
            prompt = f"{self.name}?"
        return None if prompt is None else brief(str(prompt))

    async def reconciled(self, key: str, result_bytes: int) -> Reconciled | None:
        """What the tool's own `reconcile` tells of the call with this key; None when it cannot tell."""
        assert self.reconcile
        try:
            async with asyncio.timeout(self.timeout):
                told = await _called(_THREADS, self.reconcile, key)
        except FAILURES as error:
            if cancelled():
                raise
            log.warning("tool %s: reconcile(%r) failed: %s: %s", self.name, key, type(error).__name__, error)
            return None
        if told is None:
            return Reconciled(None)
        outcome = self._judge(result_bytes, told)
        return Reconciled(outcome) if outcome.ok else None

    def _judge(self, result_bytes: int, value: object) -> Outcome:
        try:
            content, size = self.signature.content(value)
        except BadResult as wrong:
            return Outcome.failed("bad_result", str(wrong))
        if size > result_bytes:
            return Outcome.failed("result_too_large", f"the result is {size} bytes of JSON, at most {result_bytes} fit")
        return Outcome(True, content)

    async def _in_task(self, attempt: Coroutine[Any, Any, Outcome], context: ToolContext, grace: float) -> Outcome:
        task = asyncio.create_task(attempt, name=f"tool {self.name}")
        stopped = False
        try:
            await asyncio.wait({task}, timeout=self.timeout)
        finally:
            if not task.done():
                stopped = True
                context.give_up()
                task.cancel()
                await asyncio.wait({task}, timeout=grace)
        if task.done() and not task.cancelled() and (task.result().ok or not stopped):
            return task.result()
        if stopped:
            timeout = Outcome.failed("timeout", f"no result within the tool's timeout of {self.timeout:g} s")
            return replace(timeout, unfinished=not task.done())
        return Outcome.failed("tool_failed", "CancelledError: the tool cancelled itself")

    async def _in_thread(self, attempt: Callable[[], Outcome], context: ToolContext, threads: Threads) -> Outcome:
        future = threads.submit(attempt)
        never_entered = False
        try:
            await asyncio.wait({asyncio.wrap_future(future)}, timeout=self.timeout)
        finally:
            if not future.done():
                context.give_up()
                never_entered = future.cancel()
        if never_entered:
            return Outcome.failed("busy", f"no thread came free within {self.timeout:g} s; the tool was not started")
        if future.done():
            return future.result()
        said = f"no result within the tool's timeout of {self.timeout:g} s; its thread may still be at work"
        timeout = Outcome.failed("timeout", said)
        return replace(timeout, unfinished=True)


async def _called(threads: Threads, function: Callable[..., Any], *args: object) -> object:
    """Calls it in a thread when it is a plain function."""
    if inspect.iscoroutinefunction(function):
        return await function(*args)
    given = await asyncio.wrap_future(threads.submit(partial(function, *args)))
    return await given if inspect.isawaitable(given) else given


async def _attempt(
    ready: Callable[[], Awaitable[None]] | None, body: Callable[[], Any], judge: Callable[[object], Outcome]
) -> Outcome:
    if ready:
        await ready()
    try:
        return judge(await body())
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # a SystemExit that left this task would end the process
        return _failure(error)


def _attempt_in_thread(
    still: Callable[[], bool], body: Callable[[], Any], judge: Callable[[object], Outcome]
) -> Outcome:
    if not still():
        return Outcome.failed("busy", "no thread came free while the tool might be started; it was not")
    try:
        return judge(body())
    except BaseException as error:
        return _failure(error)


def _failure(error: BaseException) -> Outcome:
    if isinstance(error, ToolFailed):
        return Outcome.failed(error.code, error.message)
    kind, said = type(error).__name__, words_of(error)
    return Outcome.failed("tool_failed", f"{kind}: {said}" if said else kind)


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    effect: Effect = ...,
    name: str | None = ...,
    timeout: float = ...,
    reconcile: Reconcile | None = ...,
    approval: Approval = ...,
    allow: Allow | None = ...,
    credentials: Sequence[str] = ...,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    effect: Effect = "once",
    name: str | None = None,
    timeout: float = 30,
    reconcile: Reconcile | None = None,
    approval: Approval = None,
    allow: Allow | None = None,
    credentials: Sequence[str] = (),
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Makes a tool of a function, sync or async. Its docstring tells the model what it does.

    Its parameters are the model's, described and checked by their annotations, but for two keyword-only ones:
    `key: str`, the idempotency key of the call, and `turn: ToolContext`. What it returns is checked against its return
    annotation; without one, any JSON will do. `timeout` is in seconds. `effect` says what a crash may do: `read` and
    `idempotent` may run again with the same key, `once` never. `reconcile(key)` tells what became of a `once` call that
    is in doubt: its result, or None when it had no effect. `approval` is what a person is asked before it runs, or a
    function of the arguments that gives that, None where nobody needs to be. `allow`, sync or async, is given the
    principal and the arguments by parameter, as the function would be; what it does not say True to is settled as
    `forbidden`, and the function never entered. `credentials` are the names of those that it asks its `turn` for: one
    that LEGATO_CREDENTIALS does not have is asked of the turn's user before the function is entered. Raises TypeError
    for what can never work.
    """
    make = partial(
        _make,
        effect=effect,
        name=name,
        timeout=timeout,
        reconcile=reconcile,
        approval=approval,
        allow=allow,
        credentials=credentials,
    )
    return make if function is None else make(function)


def _make(
    function: Callable[..., Any],
    *,
    effect: Effect,
    name: str | None,
    timeout: float,
    reconcile: Reconcile | None,
    approval: Approval,
    allow: Allow | None,
    credentials: Sequence[str],
) -> Tool:
    if isinstance(function, type | Tool) or not callable(function):
        raise TypeError(f"tool: expected a function, got {function!r}")
    called = name if name is not None else getattr(function, "__name__", "")
    problem = _problem(called, effect, timeout, reconcile, approval, allow) or bad_names(credentials)
    if problem:
        raise TypeError(f"tool {called!r}: {problem}")
    description = (function.__doc__ or "").strip()
    signature = Signature.of(function, called)
    names = tuple(credentials)
    return Tool(called, description, effect, timeout, function, signature, reconcile, approval, allow, names)


def _problem(
    name: object, effect: object, timeout: object, reconcile: object, approval: object, allow: object
) -> str | None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return "a name has 1 to 64 of A-Z a-z 0-9 _ - and starts with a letter; give one with name=..."
    if effect not in get_args(Effect):
        return f"effect is {effect!r}, expected one of {', '.join(get_args(Effect))}"
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
        return f"timeout is {timeout!r}, expected seconds above 0"
    if reconcile is not None and (not callable(reconcile) or effect != "once"):
        return "reconcile is a function of the key, and only a tool with effect='once' has one"
    if not (approval is None or callable(approval) or (isinstance(approval, str) and approval)):
        return f"approval is {approval!r}, expected what a person is asked, or a function of the arguments giving it"
    if allow is not None and not callable(allow):
        return f"allow is {allow!r}, expected a function of the principal and the arguments giving a bool"
    return None


def bad_names(credentials: object) -> str | None:
    """What is wrong with the names of the credentials that a tool asks for."""
    if not isinstance(credentials, list | tuple) or not all(_is_id(name) for name in credentials):
        return f"credentials is {credentials!r}, expected a tuple of names, each an id such as 'mail'"
    return None


def _is_id(name: object) -> bool:
    return isinstance(name, str) and re.fullmatch(ID_PATTERN, name) is not None
