"""Lines of standard input, without a thread and without changing the terminal's mode."""

from __future__ import annotations

import asyncio
import os
from collections import deque


class Lines:
    """What is typed or piped into the descriptor `fd`, line by line. The kernel does the editing."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._rest = b""
        self._ready: deque[str] = deque()
        self._ended = False

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
