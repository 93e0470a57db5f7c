"""What Google publishes and knows, on this machine: certificates, App Check's key set, Identity Toolkit's users."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any, Self

from harness.signer import Signer

CERTIFICATES, KEY_SET, LOOKUP = "/certificates", "/jwks", "/v1/projects/p-one/accounts:lookup"


class Google:
    """`signers` are those whose keys it publishes. `asked` counts requests by path; `heard` is the last lookup's head.

    `status` is that of every answer; while `answering` is not set, none comes.
    """

    def __init__(self, *signers: Signer) -> None:
        self.signers = list(signers)
        self.users: dict[str, dict[str, Any]] = {}
        self.status, self.cache, self.body = 200, "public, max-age=3600, must-revalidate", b""
        self.answering = asyncio.Event()
        self.answering.set()
        self.asked: Counter[str] = Counter()
        self.arrived = asyncio.Event()
        self.heard = ""
        self.url = ""
        self._open: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = "http://{}:{}".format(*self._server.sockets[0].getsockname())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = next((line[16:] for line in head.split("\r\n") if line.startswith("content-length: ")), "0")
            asked = await reader.readexactly(int(length))
            path = head.split(" ")[1].removeprefix("/identitytoolkit.googleapis.com")
            self.asked[path] += 1
            self.arrived.set()
            await self.answering.wait()
            body = self.body or json.dumps(self._answer(path, head, asked)).encode()
            fields = f"Content-Type: application/json\r\nCache-Control: {self.cache}\r\nContent-Length: {len(body)}"
            writer.write(f"HTTP/1.1 {self.status} X\r\nConnection: close\r\n{fields}\r\n\r\n".encode() + body)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def _answer(self, path: str, head: str, asked: bytes) -> Any:
        if path == CERTIFICATES:
            return {signer.name: signer.certificate for signer in self.signers}
        if path == KEY_SET:
            return {"keys": [signer.jwk for signer in self.signers]}
        assert path == LOOKUP, path
        self.heard = head
        found = [self.users[uid] for uid in json.loads(asked)["localId"] if uid in self.users]
        return {"kind": "identitytoolkit#GetAccountInfoResponse", **({"users": found} if found else {})}
