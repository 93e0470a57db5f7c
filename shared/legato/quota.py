"""What one principal may have of this instance at a time: turns that run, streams that are open, turns begun a minute.

Counted in this process alone, so that no limit costs a write, or a read, on the way to a turn. With N instances a
principal has up to N times as much.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from legato.errors import TooManyStreams, TooManyTurns, TurnsTooFast
from legato.journal import SessionKey
from legato.settings import Settings

MINUTE_MS = 60_000
PACES = 10_000
"""Of how many principals it is kept when they began turns: beyond that the one that began none for the longest time is
forgotten, and may begin as if it had begun none."""


class Quota:
    """The books of one instance, each as large as what is under way. `clock` is in ms."""

    def __init__(self, settings: Settings, clock: Callable[[], int]) -> None:
        self._turns, self._streams = settings.turns_active, settings.streams_open
        self._pace = Pace(settings.turns_per_minute)
        self._clock = clock
        self._starting: dict[str, Counter[tuple[str, str]]] = {}
        self._open: Counter[str] = Counter()
        self._lock = threading.Lock()

    def refusal(self, key: SessionKey, turn: str, live: Iterable[SessionKey]) -> TooManyTurns | TurnsTooFast | None:
        """Why that turn may not begin now, `live` being the sessions whose turns run here.

        What runs in its own session does not count: it is in the way of the turn, or makes way for it.
        """
        starting = self._starting.get(key.uid, Counter())
        if (key.session, turn) in starting:
            return None
        running = {other.session for other in live if other.uid == key.uid} | {session for session, _ in starting}
        if self._turns and len(running - {key.session}) >= self._turns:
            return TooManyTurns(f"{self._turns} of your turns run here; wait until one has ended, or cancel one")
        wait = self._pace.wait(key.uid, self._clock(), len(starting) + 1)
        return TurnsTooFast(wait) if wait else None

    @contextmanager
    def starting(self, key: SessionKey, turn: str) -> Iterator[None]:
        """Around the start of a turn: counts it until it is among those that run."""
        mine = self._starting.setdefault(key.uid, Counter())
        mine[key.session, turn] += 1
        try:
            yield
        finally:
            mine[key.session, turn] -= 1
            self._starting[key.uid] = mine = +mine
            if not mine:
                del self._starting[key.uid]

    def began(self, uid: str) -> None:
        """One turn more in this minute."""
        self._pace.count(uid, self._clock())

    @contextmanager
    def stream(self, uid: str) -> Iterator[None]:
        """Around a stream, or a long poll that waits; it may end in another thread. Raises TooManyStreams."""
        with self._lock:
            if self._streams and self._open[uid] >= self._streams:
                raise TooManyStreams(f"{self._streams} of your streams are open here; close one, or wait for its end")
            self._open[uid] += 1
        try:
            yield
        finally:
            with self._lock:
                self._open[uid] -= 1
                if not self._open[uid]:
                    del self._open[uid]


class Pace:
    """`most` turns at once, and then one whenever a `most`-th of a minute has passed; 0 is as fast as one likes.

    One number for each principal, when its last turn would have begun at an even pace. Source: the generic cell rate
    algorithm (ITU-T I.371, virtual scheduling).
    """

    def __init__(self, most: int) -> None:
        self._step = MINUTE_MS / most if most else 0.0
        self._due: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        """Of how many it is kept."""
        return len(self._due)

    def wait(self, uid: str, now: int, turns: int) -> float:
        """Seconds until so many turns may begin; 0 when they may now."""
        return max(0.0, self._from(uid, now) + turns * self._step - now - MINUTE_MS) / 1000

    def count(self, uid: str, now: int) -> None:
        if not self._step:
            return
        self._due[uid] = self._from(uid, now) + self._step
        self._due.move_to_end(uid)
        while len(self._due) > PACES or next(iter(self._due.values())) <= now:
            self._due.popitem(last=False)

    def _from(self, uid: str, now: int) -> float:
        """Never more than a minute ahead: else the clock was set back since."""
        return min(max(self._due.get(uid, 0.0), now), now + MINUTE_MS)
