"""Lines of standard input, without a thread; the terminal's mode is changed for what must not be seen alone."""

from __future__ import annotations

import asyncio
import os
import termios
from collections import deque


class Lines:
    """What is typed or piped into the descriptor `fd`, line by line. The kernel does the editing."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._rest = b""
        self._ready: deque[str] = deque()
        self._ended = False

    async def hidden(self) -> str | None:
        """Like `next`, for a line that a terminal does not show while it is typed; half of one that nobody waits for
        any more is dropped."""
        if not os.isatty(self._fd):
            return await self.next()
        mode = termios.tcgetattr(self._fd)
        quiet = [*mode[:3], mode[3] & ~termios.ECHO | termios.ECHONL, *mode[4:]]
        termios.tcsetattr(self._fd, termios.TCSADRAIN, quiet)
        try:
            return await self.next()
        finally:
            termios.tcsetattr(self._fd, termios.TCSAFLUSH, mode)

    async def next(self) -> str | None:
        """The next line without its end, None when there are no more."""
        while not self._ready and not self._ended:
            await self._readable()
            self._take(os.read(self._fd, 64 * 1024))
        return self._ready.popleft() if self._ready else None

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        try:
            loop.add_reader(self._fd, readable.set)
        except PermissionError:  # a file, which is always readable, cannot be waited for
            return
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._fd)

    def _take(self, piece: bytes) -> None:
        self._ended = not piece
        *whole, self._rest = (self._rest + piece).split(b"\n")
        if self._ended and self._rest:
            whole.append(self._rest)
        self._ready.extend(line.decode(errors="replace").rstrip("\r") for line in whole)
