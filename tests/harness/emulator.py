"""The Firestore emulator: found where an installation of the Google Cloud CLI puts it, started on a port of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from harness.ports import Port
from harness.processes import end_group

SCRIPT = Path("platform/cloud-firestore-emulator/cloud_firestore_emulator")
USUAL = ("/usr/lib/google-cloud-sdk", "/usr/local/google-cloud-sdk", "/opt/google-cloud-sdk", "~/google-cloud-sdk")
START_SECONDS = 60


def find_emulator() -> Path:
    """The emulator's start script. Raises FileNotFoundError saying what is missing."""
    if not shutil.which("java"):
        raise FileNotFoundError("java is not on the PATH")
    for script in _places():
        if script.is_file():
            return script
    raise FileNotFoundError("the Firestore emulator is not installed (LEGATO_EMULATOR may name its start script)")


def _places() -> Iterator[Path]:
    if named := os.environ.get("LEGATO_EMULATOR"):
        yield Path(named)
        return
    if gcloud := shutil.which("gcloud"):
        yield Path(gcloud).resolve().parent.parent / SCRIPT
    for root in USUAL:
        yield Path(root).expanduser() / SCRIPT


class Emulator:
    """One emulator process; `host` is what FIRESTORE_EMULATOR_HOST takes. Its heap is at most 2 GiB."""

    def __init__(self, script: Path, log: Path) -> None:
        self._script, self._log, self._port = script, log, Port()
        self.host = f"127.0.0.1:{self._port.number}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        command = [str(self._script), "start", "--host=127.0.0.1", f"--port={self._port.number}"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "JAVA_TOOL_OPTIONS": "-Xmx2g"},
                start_new_session=True,
            )
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process:
            end_group(self._process, grace=5)
        self._port.release()

    def _wait(self) -> None:
        assert self._process
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self._process.poll() is None:
            if answers(self.host):
                return
            time.sleep(0.1)
        raise RuntimeError(f"the Firestore emulator does not answer:\n{self._log.read_text(errors='replace')[-4000:]}")


def answers(host: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{host}/", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
