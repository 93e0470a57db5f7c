"""One instance of a function on this machine, run as Cloud Run runs it. It can be killed, and another started."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

import httpx

HERE = Path(__file__).parent
START_SECONDS = 30


class Function:
    """`chat` of the file `source`, at `url` while it is entered."""

    def __init__(self, source: str, env: Mapping[str, str], log: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self._command = [sys.executable, "-m", "functions_framework", "--source", str(HERE / source)]
        self._command += ["--target", "chat", "--host", "127.0.0.1", "--port", str(self._port)]
        self._env = {**os.environ, "THREADS": "20", **env}
        self._log = log

    async def start(self) -> None:
        """Returns when it takes connections. Raises TimeoutError, with what it has printed."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - a fork of milliseconds
                self._command, env=self._env, stdout=log, stderr=log, start_new_session=True
            )
        try:
            async with asyncio.timeout(START_SECONDS), httpx.AsyncClient(trust_env=False) as http:
                while not await _there(http, self.url):  # noqa: ASYNC110 - another process's doing
                    await asyncio.sleep(0.05)
        except BaseException as error:
            self.kill()
            if isinstance(error, TimeoutError):
                raise TimeoutError(self._log.read_text(errors="replace")) from None
            raise

    def kill(self) -> None:
        """It is gone, master and workers, without a last word."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()


async def _there(http: httpx.AsyncClient, url: str) -> bool:
    with suppress(httpx.TransportError):
        return (await http.get(url)).status_code > 0
    return False
