"""Runs one seed, alone with what the engine shares with its process: chance, and the log."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager

from simulation.instance import Instance
from simulation.loop import PROCESS
from simulation.watch import Watch
from simulation.world import World


class _Complaints(logging.Handler):
    """An error in the log is a fault that the engine did not expect; time that ran out while it stood is none."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(logging.ERROR)
        self._watch = watch

    def emit(self, record: logging.LogRecord) -> None:
        here = PROCESS.get()
        thawed = isinstance(here, Instance) and here.just_thawed
        self._watch.holds(thawed, "the engine is never surprised", record.getMessage(), record.exc_info)


@contextmanager
def _alone(seed: int, watch: Watch) -> Iterator[None]:
    """What the engine shares with the rest of this process, for one world: chance, and the log."""
    log, state = logging.getLogger("legato"), random.getstate()
    kept = log.level, log.propagate, log.handlers[:]
    random.seed(seed)
    log.setLevel(logging.ERROR)
    log.propagate, log.handlers = False, [_Complaints(watch)]
    try:
        yield
    finally:
        log.level, log.propagate, log.handlers = kept
        random.setstate(state)


def run(seed: int) -> Watch:
    """Plays one seed; `broken` of what it gives says which rules did not hold."""
    world = World(seed)
    with _alone(seed, world.watch):
        try:
            world.loop.run(world.play())
        except (RuntimeError, TimeoutError) as stuck:
            world.watch.holds(False, "everything comes to rest", repr(stuck))
        world.close()
    return world.watch
