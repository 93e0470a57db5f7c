"""Node: packages of the tests' own, installed as their lock says, and their suites."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

INSTALL_SECONDS = 240
SUITE_SECONDS = 240


def why_no_node() -> str | None:
    missing = [name for name in ("node", "npm") if not shutil.which(name)]
    return f"needs Node 20 or later: {' and '.join(missing)} not on the PATH" if missing else None


def installed(package: Path) -> Path:
    """The package with all that its lock names, which is installed where it is not yet. Raises CalledProcessError."""
    lock = package / "package-lock.json"
    stamp = package / "node_modules" / f".{hashlib.sha256(lock.read_bytes()).hexdigest()}"
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # several runs may be at it
        if not stamp.exists():
            command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
            subprocess.run(command, cwd=package, check=True, capture_output=True, timeout=INSTALL_SECONDS)
            stamp.touch()
    return package


def node(package: Path, *arguments: str, env: Mapping[str, str]) -> None:
    """Runs Node in the package to its end. Raises AssertionError with what it said, unless that is 0."""
    done = subprocess.run(
        ["node", *arguments],
        cwd=package,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=SUITE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
