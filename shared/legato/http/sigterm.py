"""What a process that serves has in common on its way out, whatever server runs it."""

from __future__ import annotations

import signal
from typing import Final

END_SECONDS: Final = 1.6
"""What is left, after the turns' own time, to hand them back and to send each stream its last frame."""


def bound_the_end(drain: float) -> None:
    """From now on a second signal ends this process at once, and so does the time: `drain` seconds for the turns, and
    END_SECONDS. Both without the interpreter, which an agent may block. For the main thread's signal handlers."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, drain + END_SECONDS)
