"""The front of `legato dev`: connections in turn, bytes as they are, ends passed on."""

from __future__ import annotations

import asyncio
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from legato.dev.front import Front

Serve = Callable[[StreamReader, StreamWriter], Awaitable[None]]
SECONDS = 10


def named(name: bytes) -> Serve:
    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        await reader.readline()
        writer.write(name)
        writer.close()

    return serve


@asynccontextmanager
async def before(*workers: Serve | int) -> AsyncIterator[int]:
    """A front before these workers, or ports; gives its port."""
    servers = [await asyncio.start_server(w, "127.0.0.1", 0) for w in workers if not isinstance(w, int)]
    ports = [w for w in workers if isinstance(w, int)] + [s.sockets[0].getsockname()[1] for s in servers]
    front, listening = Front(lambda: ports), socket.create_server(("127.0.0.1", 0))
    await front.serve(listening)
    try:
        async with asyncio.timeout(SECONDS):
            yield listening.getsockname()[1]
    finally:
        await front.close()
        for server in servers:
            server.close()


async def asked(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"hello\n")
    answer = await reader.read()
    writer.close()
    return answer


async def test_connections_go_to_the_workers_in_turn() -> None:
    async with before(named(b"a"), named(b"b")) as port:
        assert [await asked(port) for _ in range(4)] in ([b"a", b"b"] * 2, [b"b", b"a"] * 2)


async def test_a_connection_that_cannot_be_made_goes_to_the_next_worker() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        async with before(deaf.getsockname()[1], named(b"b")) as port:
            assert [await asked(port) for _ in range(2)] == [b"b", b"b"]


async def test_without_a_worker_the_answer_is_503() -> None:
    async with before() as port:
        assert (await asked(port)).startswith(b"HTTP/1.1 503 ")


async def test_everything_a_worker_wrote_before_its_end_arrives() -> None:
    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        await reader.readline()
        writer.write(b"x" * 3_000_000)
        writer.close()

    async with before(serve) as port:
        assert len(await asked(port)) == 3_000_000


async def test_a_client_that_leaves_is_seen_by_its_worker() -> None:
    left = asyncio.Event()

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.read()
        left.set()
        writer.close()

    async with before(serve) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello")
        await writer.drain()
        writer.close()
        await left.wait()


async def test_a_client_that_reads_nothing_stops_its_worker() -> None:
    written, stuck = 0, asyncio.Event()

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        nonlocal written
        with suppress(ConnectionError):
            while written < 200_000_000:
                writer.write(b"x" * 100_000)
                written += 100_000
                try:
                    await asyncio.wait_for(writer.drain(), 1)
                except TimeoutError:
                    stuck.set()
                    return

    async with before(serve) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1000)
        await stuck.wait()
        writer.transport.abort()
    assert written < 100_000_000
