"""A gateway run by functions-framework as Cloud Run runs it: in production mode, gunicorn's master and one worker."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

import httpx

from harness.caller import Caller
from harness.ports import Port
from harness.processes import children, end_group, signal_group

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 30

Face = Literal["asgi", "flask", "sweep"]
KEY = "a2V5IG9mIHRoZSB0ZXN0cywgMzIgYnl0ZXMgbG9uZyE="
"""A LEGATO_CREDENTIAL_KEYS."""

TARGETS: Mapping[Face, str] = {"asgi": "gateway", "flask": "gateway_flask", "sweep": "sweep"}


class Server:
    """One instance. Started by `async with` or `start`, ended by leaving, `terminate` or `kill9`; may start again.

    `env` adds to the environment or replaces it, name for name. Everything the process prints is in the file `log`.
    """

    def __init__(self, journal: str, log: Path, face: Face = "asgi", env: Mapping[str, str] | None = None) -> None:
        self.journal, self.log, self.face = journal, log, face
        self._port = Port()
        ours = {"LEGATO_JOURNAL": journal, "LEGATO_AUTH": "dev", "LEGATO_CREDENTIAL_KEYS": KEY}
        self._env = {**_clean_environment(), **ours, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        return self._port.number

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process, "the server was not started"
        return self._process

    def caller(self, name: str = "ann") -> Caller:
        return Caller(self.url, name)

    async def start(self) -> None:
        """Returns when `GET /health` is 200, or 405 of a sweeper. Raises RuntimeError with the end of the log."""
        command = [sys.executable, "-m", "functions_framework", "--target", TARGETS[self.face]]
        command += ["--source", "functions/main.py", "--host", "127.0.0.1", "--port", str(self.port)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - a fork of milliseconds
                command,
                cwd=ROOT,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        await self._healthy()

    async def _healthy(self) -> None:
        until = time.monotonic() + START_SECONDS
        async with httpx.AsyncClient(trust_env=False, verify=False, timeout=5) as http:
            while time.monotonic() < until and self.process.poll() is None:
                if await _answers(http, f"{self.url}/health", 405 if self.face == "sweep" else 200):
                    return
                await asyncio.sleep(0.05)
        end_group(self.process, grace=0)
        raise RuntimeError(f"the server does not come up ({self.face}, {self.journal}):\n{self.output()[-4000:]}")

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def workers(self) -> list[int]:
        """The pids of the processes that answer requests; the framework's master is not one of them."""
        return children(self.process.pid)

    def kill9(self) -> None:
        """The instance vanishes: master and workers, without a last word."""
        signal_group(self.process, signal.SIGKILL)
        self.process.wait()

    def sigstop(self) -> None:
        """The instance freezes, as Cloud Run freezes it: sockets stay open, nothing moves."""
        signal_group(self.process, signal.SIGSTOP)

    def sigcont(self) -> None:
        signal_group(self.process, signal.SIGCONT)

    async def terminate(self, grace: float = 10) -> float:
        """SIGTERM to the master as Cloud Run sends it; the seconds until it was gone. Raises TimeoutExpired."""
        began = time.monotonic()
        self.process.terminate()
        await asyncio.to_thread(self.process.wait, grace)
        return time.monotonic() - began

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process:
            await asyncio.to_thread(end_group, self._process, 0)
        self._port.release()


UNLIMITED: Mapping[str, str] = dict.fromkeys(
    ("LEGATO_TURNS_ACTIVE", "LEGATO_STREAMS_OPEN", "LEGATO_TURNS_PER_MINUTE"), "0"
)
"""One caller stands for many people in most tests."""


def _clean_environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LEGATO_", "PYTEST_"))}
    return {**kept, "THREADS": "200", "WORKERS": "1", **UNLIMITED}


async def _answers(http: httpx.AsyncClient, url: str, status: int) -> bool:
    try:
        return (await http.get(url)).status_code == status
    except httpx.HTTPError:
        return False
