"""An event loop in virtual time: nothing sleeps, no thread, no socket, and what runs next is the same every time."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context, ContextVar, copy_context
from itertools import count
from typing import Any, NoReturn, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
RESOLUTION = 1e-6
"""Seconds by which a timer is late, as on any clock: time moves, however short a wait is."""
CALLBACKS = 400_000
"""A world that takes more than this spins without getting anywhere."""


class Process:
    """What is frozen and killed as a whole: the callbacks of all tasks that were started in its context.

    While it stands they are kept, in order. Killed means never let go on.
    """

    def __init__(self) -> None:
        self.standing = False
        self.kept: deque[asyncio.Handle] = deque()
        self._fuse = 0
        self._stopped: Callable[[], None] = _nothing

    def stop_after(self, callbacks: int, stopped: Callable[[], None]) -> None:
        """Stops it in the midst of its work: when so many more of its callbacks have run."""
        self._fuse, self._stopped = callbacks, stopped

    def ran(self) -> None:
        """Counts one callback."""
        if self._fuse:
            self._fuse -= 1
            if not self._fuse:
                self.standing = True
                self._stopped()

    def context(self) -> Context:
        """A context of its own for one more task of this process."""
        context = copy_context()
        context.run(PROCESS.set, self)
        return context


def _nothing() -> None:
    """Nobody asked to be told."""


PROCESS: ContextVar[Process | None] = ContextVar("the process whose callback runs", default=None)


class _Task(asyncio.Task[T]):
    """Sets of tasks are walked in the order of their numbers, not of their addresses."""

    def __init__(self, coro: Coroutine[Any, Any, T], number: int, **named: Any) -> None:
        self._number = number
        super().__init__(coro, **named)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.AbstractEventLoop):
    """Runs what is ready in order; when nothing is, time jumps to the next timer."""

    def __init__(self) -> None:
        self.tasks: dict[_Task[Any], None] = {}
        self._now = 0.0
        self._ready: deque[tuple[asyncio.Handle, Process | None]] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle, Context]] = []
        self._numbers = count()
        self._callbacks = 0
        self._running = False
        self.complaints: list[dict[str, Any]] = []

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs until it is done. Raises RuntimeError when nothing is left that could finish it, or it spins."""
        task: asyncio.Task[T] = self.create_task(work)
        asyncio._set_running_loop(self)
        self._running, self._callbacks = True, 0
        try:
            while not task.done():
                self._step()
        finally:
            self._running = False
            asyncio._set_running_loop(None)
        return task.result()

    def _step(self) -> None:
        if not self._ready:
            self._jump()
        handle, process = self._ready.popleft()
        if handle.cancelled():
            return
        if process is None:
            handle._run()
        elif process.standing:
            process.kept.append(handle)
        else:
            handle._run()
            process.ran()
        self._callbacks += 1
        if self._callbacks > CALLBACKS:
            raise RuntimeError(f"the world spins at {self._now:.3f}")

    def _jump(self) -> None:
        if not self._timers:
            raise RuntimeError("nothing is left to do")
        self._now = max(self._now, self._timers[0][0]) + RESOLUTION
        while self._timers and self._timers[0][0] <= self._now:
            _, _, handle, context = heapq.heappop(self._timers)
            self._ready.append((handle, context.get(PROCESS)))

    def resume(self, process: Process) -> None:
        """Lets a process go on, its kept callbacks first."""
        process.standing = False
        process.stop_after(0, _nothing)
        self._ready.extend((handle, process) for handle in process.kept)
        process.kept.clear()

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        context = copy_context() if context is None else context
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append((handle, context.get(PROCESS)))
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        context = copy_context() if context is None else context
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), handle, context))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is skipped when its time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **named: Any) -> asyncio.Task[Any]:
        task: _Task[Any] = _Task(coro, next(self._numbers), loop=self, **named)
        self.tasks[task] = None
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        del self.tasks[task]  # type: ignore[arg-type]

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.complaints.append(context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return False

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> NoReturn:
        raise RuntimeError(f"{func!r} wants a thread; a simulation has none")


def new_loop() -> VirtualLoop:
    return VirtualLoop()  # type: ignore[abstract] # what is missing has to do with sockets and processes
