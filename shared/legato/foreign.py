"""What code of others may raise where it is called: none of it ends a task of ours, or the process."""

from __future__ import annotations

import asyncio
from typing import Final

FAILURES: Final = (Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError)
"""A SystemExit that left its task would end the process, and the CancelledError of a task of theirs the one that asks.
Whoever takes these goes on only where not `cancelled`."""


def cancelled() -> bool:
    """The running task itself is to end: what is raised in it now may be what that was turned into."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
