"""The stream that started a turn: it may hold the model back, in bounds."""

from __future__ import annotations

import asyncio


class Lead:
    """Holds while more than `ahead` bytes of events were shown that its stream did not take; `seconds` in all, then it
    is `slow` and holds no more. It never holds when nobody reads: a connection that is lost holds nothing back."""

    def __init__(self, ahead: int, seconds: float) -> None:
        self.slow = False
        self._ahead = ahead
        self._left = seconds
        self._behind = 0
        self._reading = False
        self._let_go = asyncio.Event()
        self._turns = asyncio.Lock()

    def begin(self) -> None:
        """Its stream is open."""
        self._reading = True

    def end(self) -> None:
        self._reading = False
        self._look()

    def shown(self, size: int) -> None:
        self._behind += size

    def took(self, size: int) -> None:
        """Its stream came back for more after so many bytes of events."""
        self._behind -= size
        self._look()

    @property
    def holds(self) -> bool:
        return self._reading and not self.slow and self._behind > self._ahead

    async def let_go(self) -> None:
        """Returns when it does not hold. Of several who wait, one at a time: the seconds count once."""
        async with self._turns:
            if not self.holds:
                return
            loop = asyncio.get_running_loop()
            began = loop.time()
            self._let_go.clear()
            try:
                async with asyncio.timeout(self._left):
                    await self._let_go.wait()
            except TimeoutError:
                self.slow = True
            finally:
                self._left -= loop.time() - began

    def _look(self) -> None:
        if not self.holds:
            self._let_go.set()
