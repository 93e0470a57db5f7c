"""The tests' own network hop does what it says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from harness import TcpProxy


class Line:
    """A client's connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, data: bytes) -> bytes:
        self.writer.write(data)
        async with asyncio.timeout(5):
            return await self.reader.read(65536)


Connect = Callable[[TcpProxy], Awaitable[Line]]


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while (line := await reader.readline()) and line != b"quiet\n":
            writer.write(line)
        await reader.read()
    writer.close()


@pytest.fixture
async def upstream() -> AsyncIterator[int]:
    """Answers every line with itself; after `quiet` it keeps silent for good."""
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    writers = []

    async def to(proxy: TcpProxy) -> Line:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writers.append(writer)
        return Line(reader, writer)

    yield to
    for writer in writers:
        writer.close()


async def test_it_passes_bytes_both_ways(upstream: int, connect: Connect) -> None:
    async with TcpProxy(upstream) as proxy:
        assert await (await connect(proxy)).ask(b"hello\n") == b"hello\n"


async def test_a_cut_ends_every_connection_and_lets_new_ones_in(upstream: int, connect: Connect) -> None:
    async with TcpProxy(upstream) as proxy:
        lines = [await connect(proxy) for _ in range(3)]
        assert [await line.ask(b"hello\n") for line in lines] == [b"hello\n"] * 3
        assert proxy.cut() == 3
        assert [await line.reader.read() for line in lines] == [b""] * 3
        assert await (await connect(proxy)).ask(b"again\n") == b"again\n"


@pytest.mark.parametrize("size", [1, 9, 10])
async def test_exactly_the_bytes_asked_for_pass_before_the_cut(upstream: int, connect: Connect, size: int) -> None:
    async with TcpProxy(upstream, cut_after=size) as proxy:
        line = await connect(proxy)
        line.writer.write(b"0123456789\n")
        assert await line.reader.read() == b"0123456789"[:size]


async def test_a_reset_is_seen_as_a_reset(upstream: int, connect: Connect) -> None:
    async with TcpProxy(upstream, reset=True) as proxy:
        line = await connect(proxy)
        await line.ask(b"hello\n")
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            await line.reader.read()


async def test_what_is_held_arrives_after_the_release(upstream: int, connect: Connect) -> None:
    async with TcpProxy(upstream) as proxy:
        line = await connect(proxy)
        await line.ask(b"hello\n")
        proxy.hold()
        answer = asyncio.ensure_future(line.ask(b"again\n"))
        await asyncio.wait({answer}, timeout=0.1)
        assert not answer.done()
        proxy.release()
        assert await answer == b"again\n"


async def test_a_held_connection_can_be_cut(upstream: int, connect: Connect) -> None:
    async with TcpProxy(upstream) as proxy:
        line = await connect(proxy)
        await line.ask(b"hello\n")
        proxy.hold()
        assert proxy.cut() == 1
        assert await line.reader.read() == b""


async def test_silence_from_upstream_is_cut_and_bytes_in_time_are_not(upstream: int, connect: Connect) -> None:
    async with TcpProxy(upstream, idle=0.5) as proxy:
        line = await connect(proxy)
        for _ in range(6):
            assert await line.ask(b"hello\n") == b"hello\n"
            await asyncio.sleep(0.1)
        assert await line.ask(b"quiet\n") == b""


async def test_a_hop_that_waits_for_an_opening_passes_all_bytes_once_it_is_there(
    upstream: int, connect: Connect
) -> None:
    async with TcpProxy(upstream, opening=8) as proxy:
        line = await connect(proxy)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(line.ask(b"0123\n"), 0.2)
        assert await line.ask(b"45\n") == b"0123\n45\n"
        assert await line.ask(b"6\n") == b"6\n"


async def test_a_buffering_hop_passes_whole_pieces_only(upstream: int, connect: Connect) -> None:
    async with TcpProxy(upstream, buffer=8) as proxy:
        line = await connect(proxy)
        assert await line.ask(b"0123456789\n") == b"01234567"
        assert await line.ask(b"abcd\n") == b"89\nabcd\n"
