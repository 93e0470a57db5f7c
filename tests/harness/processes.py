"""Process groups: everything a started program started ends with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path


def children(pid: int) -> list[int]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """The group outlives its leader, so this reaches orphans too."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def end_group(process: subprocess.Popen[bytes], grace: float) -> None:
    """SIGTERM, then SIGKILL to whatever is left after `grace` seconds."""
    signal_group(process, signal.SIGCONT)
    signal_group(process, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace)
    signal_group(process, signal.SIGKILL)
    process.wait()
