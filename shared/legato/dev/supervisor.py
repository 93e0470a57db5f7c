"""`legato dev`: several workers behind one port, started, watched and ended together."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from legato.dev.front import Front
from legato.errors import LegatoError

Say = Callable[[str], None]

END_SECONDS: Final = 3.0
"""How long the workers have to end, beyond the time that they give their turns; what is left then is killed."""
BREATH: Final = 1.0
"""Seconds between two attempts to bring a worker back."""


class CannotStart(LegatoError):
    """The gateway cannot run as asked; the message is one line that says what to change."""

    code = "cannot_start"


@dataclass(frozen=True, slots=True)
class Worker:
    """A living worker. It ends when `link` is closed."""

    process: Process
    link: asyncio.StreamWriter
    port: int
    about: Mapping[str, Any]

    @property
    def pid(self) -> int:
        return self.process.pid


class Dev:
    """The development gateway: use it as an async context; inside, `url` answers. Raises CannotStart on entry.

    `env` is the workers' environment, `say` is told of what happens to them, a line at a time.
    """

    def __init__(self, port: int, instances: int, env: Mapping[str, str], say: Say) -> None:
        self._asked_port, self._instances, self._env, self._say = port, instances, env, say
        self._workers: list[Worker | None] = [None] * instances
        self._keepers: list[asyncio.Task[None]] = []
        self._front = Front(lambda: [worker.port for worker in self.workers])
        self._listening: socket.socket | None = None

    @property
    def workers(self) -> list[Worker]:
        """Those that live now."""
        return [worker for worker in self._workers if worker and worker.process.returncode is None]

    @property
    def url(self) -> str:
        assert self._listening
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def kill(self, instance: str) -> int:
        """Sends SIGKILL to the living worker that serves under this name, and gives its pid."""
        (worker,) = (worker for worker in self.workers if worker.about["instance"] == instance)
        worker.process.kill()
        return worker.pid

    async def __aenter__(self) -> Self:
        try:
            self._listening = _bound(self._asked_port)
            async with asyncio.TaskGroup() as starting:
                for number in range(self._instances):
                    starting.create_task(self._start(number))
            await self._front.serve(self._listening)
        except BaseException as failure:
            await self._close()
            raise _first(failure) from None
        self._keepers = [asyncio.create_task(self._keep(number)) for number in range(self._instances)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _start(self, number: int) -> None:
        self._workers[number] = await start_worker(self._env)

    async def _keep(self, number: int) -> None:
        """Starts worker `number` again whenever it dies."""
        clock, started = asyncio.get_running_loop().time, -BREATH
        while True:
            worker = self._workers[number]
            if worker:
                code = await worker.process.wait()
                worker.link.close()
                self._say(f"worker {worker.pid} {_died(code)}; starting another")
            await asyncio.sleep(max(0.0, started + BREATH - clock()))
            started = clock()
            try:
                await self._start(number)
            except (CannotStart, OSError) as reason:
                self._workers[number] = None
                self._say(f"no worker could be started: {reason}; trying again")

    async def _close(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        self._front.refuse()
        if self._listening:
            self._listening.close()
        try:
            await asyncio.gather(*(_end(worker) for worker in self.workers))
        finally:
            await self._front.close()


async def start_worker(env: Mapping[str, str]) -> Worker:
    """Returns when the worker serves. Raises CannotStart with what the worker said, or how it died."""
    ours, theirs = socket.socketpair()
    reader, link = await asyncio.open_connection(sock=ours)
    command = (sys.executable, "-m", "legato.dev.worker", str(theirs.fileno()))
    process: Process | None = None
    try:
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True, env=env
            )
        told = json.loads(await reader.readline() or "{}")
        if "port" in told:
            return Worker(process, link, told["port"], told)
        raise CannotStart(told.get("error") or f"a worker {_died(await process.wait())} before it was ready")
    except BaseException:
        link.close()
        await _kill(process)
        raise


async def _end(worker: Worker) -> None:
    """Returns when the worker has ended; one that is waited for no longer is killed."""
    worker.link.close()
    try:
        async with asyncio.timeout(worker.about["drain"] + END_SECONDS):
            await worker.process.wait()
    except (TimeoutError, asyncio.CancelledError):
        await _kill(worker.process)


async def _kill(process: Process | None) -> None:
    """Returns when it has ended: asyncio complains of a loop that is closed before its processes have."""
    if process:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _bound(port: int) -> socket.socket:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
        listening.listen(1)
    except OSError as taken:
        listening.close()
        raise CannotStart(f"port {port} cannot be used ({os.strerror(taken.errno or 0)}); choose another") from taken
    return listening


def _first(failure: BaseException) -> BaseException:
    """The one that says it, of several workers that could not start."""
    return _first(failure.exceptions[0]) if isinstance(failure, BaseExceptionGroup) else failure


def _died(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
