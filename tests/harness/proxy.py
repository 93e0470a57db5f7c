"""A TCP hop between two ends that can do what hops do: cut, reset, fall silent, give up on silence, hold bytes back."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Self

CHUNK = 65536
LINGER_ZERO = struct.pack("ii", 1, 0)


class TcpProxy:
    """Listens at 127.0.0.1:`port` and passes bytes on to 127.0.0.1:`upstream`.

    `cut_after`: the connection is cut once this many bytes of the answers have passed.
    `reset`: cuts are a RST instead of a FIN.
    `idle`: cut after this many seconds without a byte from upstream, as a proxy's idle timeout does.
    `opening`: nothing of the answers passes before this many bytes of them have come.
    `buffer`: answers are passed on in pieces of exactly this many bytes; what is left goes out at their end.
    Each may be set at any time and holds for connections accepted from then on.
    """

    def __init__(
        self,
        upstream: int,
        *,
        cut_after: int | None = None,
        reset: bool = False,
        idle: float | None = None,
        buffer: int = 0,
        opening: int = 0,
    ) -> None:
        self.upstream = upstream
        self.cut_after, self.reset, self.idle, self.buffer = cut_after, reset, idle, buffer
        self.opening = opening
        self.port = 0
        self.accepted = 0
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._links: dict[asyncio.Task[None], _Link] = {}
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def open_links(self) -> int:
        return len(self._links)

    def cut(self) -> int:
        """Cuts every connection now; how many there were."""
        return self._end(self.reset)

    def _end(self, reset: bool) -> int:
        for task, link in self._links.items():
            link.cut(reset)
            task.cancel()
        return len(self._links)

    def hold(self) -> None:
        """Black-holes both directions, also of new connections: accepted, and not a byte passed."""
        self._flowing.clear()

    def release(self) -> None:
        """What was held goes on."""
        self._flowing.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server
        self._server.close()
        self._end(reset=True)
        await asyncio.gather(*self._links)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task
        link = self._links[task] = _Link(self._flowing, writer)
        try:
            await link.run(reader, self)
        except (OSError, TimeoutError, asyncio.CancelledError):
            pass  # the ends see the cut; the proxy itself has nothing to say
        finally:
            link.cut(self.reset)
            del self._links[task]


class _Link:
    """One connection: the client's socket and, once it stands, the upstream's."""

    def __init__(self, flowing: asyncio.Event, client: asyncio.StreamWriter) -> None:
        self._flowing = flowing
        self._writers = [client]

    async def run(self, client: asyncio.StreamReader, proxy: TcpProxy) -> None:
        """Returns when either end has closed. Raises TimeoutError after `idle`, ConnectionError when cut or reset."""
        settings = proxy.idle, proxy.cut_after, proxy.buffer, proxy.opening
        await self._flowing.wait()
        upstream, writer = await asyncio.open_connection("127.0.0.1", proxy.upstream)
        self._writers.append(writer)
        sending = asyncio.ensure_future(self._send(client, writer))
        answering = asyncio.ensure_future(self._answer(upstream, *settings))
        try:
            done, _ = await asyncio.wait({sending, answering}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (sending, answering):
                task.cancel()
            await asyncio.gather(sending, answering, return_exceptions=True)

    def cut(self, reset: bool) -> None:
        for writer in self._writers:
            if reset and (sock := writer.get_extra_info("socket")) and sock.fileno() >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
                writer.transport.abort()
            else:
                writer.close()

    async def _send(self, client: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await client.read(CHUNK):
            await self._flowing.wait()
            writer.write(chunk)
            await writer.drain()

    async def _answer(
        self, upstream: asyncio.StreamReader, idle: float | None, left: int | None, buffer: int, opening: int
    ) -> None:
        held = b""
        while chunk := await asyncio.wait_for(upstream.read(CHUNK), idle):
            held += chunk
            if len(held) < opening:
                continue
            opening = 0
            whole = len(held) if not buffer else len(held) - len(held) % buffer
            left = await self._pass_on(held[:whole], left)
            held = held[whole:]
        await self._pass_on(held, left)

    async def _pass_on(self, data: bytes, left: int | None) -> int | None:
        """Gives back how many bytes may still pass. Raises ConnectionAbortedError after the last of them."""
        await self._flowing.wait()
        allowed = data if left is None else data[:left]
        self._writers[0].write(allowed)
        with contextlib.suppress(ConnectionError):
            await self._writers[0].drain()
        if left is None:
            return None
        if len(allowed) == left:
            raise ConnectionAbortedError("cut on purpose")
        return left - len(allowed)
