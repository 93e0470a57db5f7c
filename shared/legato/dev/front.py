"""One port before several workers: every new connection goes to the next of them, byte for byte."""

from __future__ import annotations

import asyncio
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

PIECE: Final = 64 * 1024
NOBODY: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Type: application/problem+json\r\n"
    b'Connection: close\r\n\r\n{"status":503,"code":"no_worker","title":"no worker is up; another is being started"}\n'
)


class Front:
    """Passes connections on to the ports that `ports` names, in turn; one that cannot be made goes to the next port.

    Either side's end ends the other. Nothing is read faster than the other side takes it.
    """

    def __init__(self, ports: Callable[[], Sequence[int]]) -> None:
        self._ports = ports
        self._turn = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def serve(self, listening: socket.socket) -> None:
        """Takes connections from now on. Raises OSError when the port is another's."""
        self._server = await asyncio.start_server(self._accept, sock=listening)

    def refuse(self) -> None:
        """Takes no connections from now on; those that there are go on."""
        if self._server:
            self._server.close()

    async def close(self) -> None:
        self.refuse()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        connection = asyncio.ensure_future(self._pass_on(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _pass_on(self, reader: StreamReader, writer: StreamWriter) -> None:
        worker = await self._connect()
        try:
            if worker is None:
                await reader.read(PIECE)
                writer.write(NOBODY)
            else:
                await _join(reader, writer, *worker)
        except (asyncio.CancelledError, OSError):
            writer.transport.abort()
        finally:
            writer.close()
            if worker:
                worker[1].transport.abort()

    async def _connect(self) -> tuple[StreamReader, StreamWriter] | None:
        ports = self._ports()
        self._turn += 1
        for number in range(len(ports)):
            with suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", ports[(self._turn + number) % len(ports)])
        return None


async def _join(reader: StreamReader, writer: StreamWriter, upstream: StreamReader, to_worker: StreamWriter) -> None:
    """Returns when either side has ended. Raises OSError when one broke."""
    ways = {asyncio.ensure_future(_carry(reader, to_worker)), asyncio.ensure_future(_carry(upstream, writer))}
    try:
        ended, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ended:
            way.result()
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _carry(source: StreamReader, to: StreamWriter) -> None:
    while piece := await source.read(PIECE):
        to.write(piece)
        await to.drain()
