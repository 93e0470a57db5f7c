"""Wake-ups by Firestore's Listen: one stream, on a channel of its own, holds the targets of many sessions.

Rules of this file:
- It wakes; what is so, is read. Who waits is woken now and then in any case: at each tick while a target is in doubt
  (not yet current, its stream broken), seldom while it is in order.
- A stream that ends, is refused or falls silent is opened again, after a pause that grows, with all its targets. Once
  a target is current again, who waits for it is woken.
- A target outlives the time between two waits: it goes when nobody has waited for a whole tick.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from contextlib import aclosing, contextmanager
from itertools import count
from typing import Final

from legato.errors import LegatoError
from legato.journal.firestore_rpc import FirestoreRpc
from legato.journal.firestore_wire import Message
from legato.journal.wakeups import Marks, Waiters
from legato.journal.watch_targets import Aim, Change, Target, add_request, aims, probe_requests, remove_request

log = logging.getLogger("legato.journal")

TARGETS: Final = 180
"""Of one stream: some 90 sessions."""
SELDOM: Final = 12
"""Ticks between two wake-ups by a target that is in order."""
SILENT, DEAD = 4, 6
"""Ticks without a message after which a stream is probed, and given up."""
PAUSE_SECONDS: Final = 0.1
PAUSE_SECONDS_MAX: Final = 15.0


class Watch:
    """Who waits for which session, and the streams that tell. Nothing runs when nobody has waited for a while.

    `tick`: seconds between two wake-ups of who waits in doubt; all other times but the pauses are counted in ticks.
    """

    def __init__(self, rpc: FirestoreRpc, tick: float) -> None:
        self._rpc, self._tick_seconds = rpc, tick
        self._waiters: Waiters[str] = Waiters()
        self._targets: dict[Aim, tuple[Target, Stream]] = {}
        self._streams: list[Stream] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._ticking: asyncio.Task[None] | None = None
        self._closed = False

    async def wait(self, session: str, known: Marks, timeout: float) -> bool:
        """Returns True when the session may be beyond `known`, False after `timeout` seconds.

        `session` is the name of its document.
        """
        if self._closed:
            return True
        with self._waiters.waiting(session, known) as woken, self._using(aims(session, known)) as targets:
            for target in targets:
                self._waiters.wake(session, target.marks)
            await asyncio.wait([woken], timeout=timeout)
        return woken.done()

    async def close(self) -> None:
        """Wakes who waits, and ends all that runs."""
        self._closed = True
        self._waiters.wake_all()
        for aim in list(self._targets):
            self._forget(aim)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @contextmanager
    def _using(self, wanted: list[Aim]) -> Iterator[list[Target]]:
        targets = [self._target(aim) for aim in wanted]
        for target in targets:
            target.users += 1
            target.idle = False
        try:
            yield targets
        finally:
            for target in targets:
                target.users -= 1

    def _target(self, aim: Aim) -> Target:
        if aim not in self._targets:
            stream = next((stream for stream in self._streams if len(stream.targets) < TARGETS), None) or self._open()
            self._targets[aim] = Target(aim), stream
            stream.add(self._targets[aim][0])
        if self._ticking is None or self._ticking.done():
            self._ticking = self._run(self._tick())
        return self._targets[aim][0]

    def _open(self) -> Stream:
        stream = Stream(self._rpc, lambda target, marks: self._waiters.wake(target.aim.session, marks))
        stream.task = self._run(stream.run())
        self._streams.append(stream)
        return stream

    def _run(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _forget(self, aim: Aim) -> None:
        target, stream = self._targets.pop(aim)
        stream.remove(target)
        if not stream.targets:
            self._streams.remove(stream)
            stream.task.cancel()
        if not self._targets and self._ticking:
            self._ticking.cancel()
            self._ticking = None

    async def _tick(self) -> None:
        for tick in count():
            await asyncio.sleep(self._tick_seconds)
            for stream in self._streams:
                stream.tick()
            for turn, (aim, (target, _)) in enumerate(list(self._targets.items()), tick):
                if not target.current or turn % SELDOM == 0:
                    self._waiters.wake(aim.session, target.utmost)
                if target.idle:
                    self._forget(aim)
                target.idle = not target.users


class Stream:
    """One Listen stream and its targets. `tell` hears how far a session has come."""

    task: asyncio.Task[None]

    def __init__(self, rpc: FirestoreRpc, tell: Callable[[Target, Marks], None]) -> None:
        self.targets: set[Target] = set()
        self._rpc, self._tell = rpc, tell
        self._numbered: dict[int, Target] = {}
        self._numbers = count(1)
        self._outbox: asyncio.Queue[Message] = asyncio.Queue()
        self._limit: asyncio.Timeout | None = None
        self._failures = 0
        self._silence = 0

    def add(self, target: Target) -> None:
        self.targets.add(target)
        if self._limit:
            self._ask(target)

    def remove(self, target: Target) -> None:
        self.targets.discard(target)
        if self._numbered.pop(target.number, None):
            self._outbox.put_nowait(remove_request(self._rpc.database, target.number))

    async def run(self) -> None:
        """Listens until it is cancelled."""
        while True:
            try:
                await self._listen()
                log.info("Firestore has ended a Listen stream; opening it again")
            except (LegatoError, TimeoutError) as failed:
                log.warning("a Listen stream is broken; opening it again: %s", failed or "it is silent")
            except Exception:
                log.exception("a Listen stream said what is not understood; opening it again")
            pause = min(PAUSE_SECONDS * 2**self._failures, PAUSE_SECONDS_MAX)
            self._failures = min(self._failures + 1, 16)
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))

    def tick(self) -> None:
        """Time has passed: probes the stream if it is silent, gives it up if it stays so; tries what was refused."""
        self._silence += 1
        if self._silence == SILENT:
            for request in probe_requests(self._rpc.database, next(self._numbers), self._rpc.name("legato/check")):
                self._outbox.put_nowait(request)
        if self._limit and self._silence >= DEAD and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())
        for target in self.targets:
            target.rest -= 1
            if self._limit and target.rest == 0:
                self._ask(target)

    def _ask(self, target: Target) -> None:
        target.number = next(self._numbers)
        self._numbered[target.number] = target
        self._outbox.put_nowait(add_request(self._rpc.database, target.number, target.aim))

    async def _listen(self) -> None:
        """One stream from its opening to its end. Raises LegatoError, and TimeoutError when it is given up."""
        self._outbox, self._silence = asyncio.Queue(), 0
        try:
            async with asyncio.timeout(None) as self._limit:
                for target in self.targets:
                    self._ask(target)
                async with aclosing(self._rpc.listen(_requests(self._outbox))) as messages:
                    async for message in messages:
                        self._silence = 0
                        self._take(message)
        finally:
            self._limit = None
            self._numbered.clear()
            for target in self.targets:
                target.lose()

    def _take(self, message: Message) -> None:
        kind = message.WhichOneof("response_type")
        if kind == "target_change":
            self._take_target_change(message.target_change)
        elif kind == "document_change":
            change = message.document_change
            for target in self._those(change.target_ids):
                target.put(change.document)
                self._tell(target, target.marks)
            self._drop(change.document.name, change.removed_target_ids)
        elif kind in ("document_delete", "document_remove"):
            gone = getattr(message, kind)
            self._drop(gone.document, gone.removed_target_ids)

    def _drop(self, name: str, numbers: Iterable[int]) -> None:
        for target in self._those(numbers):
            target.drop(name)

    def _take_target_change(self, change: Message) -> None:
        targets = self._those(change.target_ids or list(self._numbered))
        match change.target_change_type:
            case Change.CURRENT:
                self._failures = 0
                for target in targets:
                    if target.settle():
                        self._tell(target, target.utmost)
            case Change.REMOVE:
                for target in targets:
                    log.warning("Firestore has stopped watching %s: %s", target.aim.session, change.cause.message)
                    del self._numbered[target.number]
                    target.refused()
            case Change.RESET:
                for target in targets:
                    target.held.clear()

    def _those(self, numbers: Iterable[int]) -> list[Target]:
        """The targets of these numbers that are still wanted."""
        return [self._numbered[number] for number in numbers if number in self._numbered]


async def _requests(outbox: asyncio.Queue[Message]) -> AsyncGenerator[Message, None]:
    while True:
        yield await outbox.get()
