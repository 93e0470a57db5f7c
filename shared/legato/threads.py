"""Threads for code that blocks: bounded, daemonic (a stuck one never keeps the process), started when first needed."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar

T = TypeVar("T")


class Threads:
    """At most `size` threads, taking work in the order in which it came. Work that still waits can be cancelled."""

    def __init__(self, size: int, name: str) -> None:
        self._size, self._name = size, name
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = Lock()
        self._started = self._busy = 0

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Runs `work` in a thread, in a copy of the caller's contextvars."""
        future: Future[T] = Future()
        context = contextvars.copy_context()
        with self._lock:
            self._busy += 1
            if self._busy > self._started < self._size:
                self._started += 1
                Thread(target=self._serve, name=f"{self._name}-{self._started}", daemon=True).start()
        self._work.put(lambda: context.run(_settle, future, work))
        return future

    def close(self) -> None:
        """Ends the threads once what was submitted is done; takes no more work."""
        for _ in range(self._started):
            self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work
            with self._lock:
                self._busy -= 1


def _settle(future: Future[Any], work: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)
