"""Who lingers: streams and long polls are counted, by the face that has threads for them and by who they are for."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Self

from legato.errors import NoRoom
from legato.quota import Quota


class Seat:
    """A request's seat among those that linger, once it takes one. Whoever sends its answer leaves it after that.

    Without a `room` a face has a seat for everybody.
    """

    def __init__(self, room: threading.Semaphore | None = None) -> None:
        self._room = room
        self._held = ExitStack()

    def take(self, quota: Quota, uid: str) -> None:
        """Called before anything has begun. Raises NoRoom, TooManyStreams."""
        if self._room is not None:
            if not self._room.acquire(blocking=False):
                raise NoRoom("as many streams and long polls are open here as this instance has threads for; ask again")
            self._held.callback(self._room.release)
        self._held.enter_context(quota.stream(uid))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        self._held.close()
