"""The command line as a person starts it: real processes, found again by a mark in their environment."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4


class Command:
    """`legato ARGUMENTS`, with `directory` as its own; everything it prints is in `output`. Leaving ends all of it.

    Its standard input is empty; with `typed` it is a pipe that `types` writes to, with `terminal` (the descriptor of
    one) input and output are that, and nothing comes to `output`.
    """

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        typed: bool = False,
        terminal: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.mark = uuid4().hex
        self._log = directory / f"{self.mark}.log"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("LEGATO_", "PYTEST_"))}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "legato", *arguments],
                cwd=directory,
                stdin=terminal or (subprocess.PIPE if typed else subprocess.DEVNULL),
                stdout=terminal or log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**kept, "XDG_STATE_HOME": str(directory), **(env or {}), "TEST_MARK": self.mark},
            )

    @property
    def output(self) -> str:
        return self._log.read_text()

    def alive(self) -> list[int]:
        """The pids of all processes that came from this command, wherever they have gone."""
        return [pid for pid in _pids() if f"TEST_MARK={self.mark}\0".encode() in _environment(pid)]

    def types(self, *lines: str) -> None:
        assert self.process.stdin
        self.process.stdin.write("".join(f"{line}\n" for line in lines).encode())
        self.process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill9(self) -> None:
        """Ends all of it without a last word, first the process that would bring others back."""
        for pid in sorted(self.alive(), key=self.process.pid.__ne__):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def ended(self, within: float = 20) -> int:
        """The exit code. Raises TimeoutExpired."""
        return await asyncio.to_thread(self.process.wait, within)

    async def says(self, text: str, within: float = 20) -> str:
        """The output, once `text` is in it. Raises AssertionError with what was said instead."""
        await until(lambda: text in self.output or self.process.poll() is not None, within, lambda: self.output)
        assert text in self.output, self.output
        return self.output

    async def gone(self, within: float = 10) -> None:
        """Returns when not one process is left. Raises AssertionError."""
        await until(lambda: not self.alive(), within, lambda: f"still there: {self.alive()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill9()
        self.process.wait()
        if self.process.stdin:
            self.process.stdin.close()


async def until(condition: Callable[[], bool], within: float, otherwise: Callable[[], str] = lambda: "") -> None:
    """Returns when `condition` holds. Raises AssertionError after `within` seconds."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, otherwise()
        await asyncio.sleep(0.02)


def _pids() -> Sequence[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _environment(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""
