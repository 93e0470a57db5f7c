"""`legato chat` against `legato dev`, as two people would kill them."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from commands import Command, until
from harness.ports import Port
from legato.cli import _state_directory
from legato.client.store import FileStore, Saved, Sent
from legato.terminal.showcase import TOKEN
from legato.turn import SessionState


@pytest.fixture
def port() -> Iterator[str]:
    held = Port()
    yield str(held.number)
    held.release()


def serve(directory: Path, port: str) -> Command:
    return Command(directory, "dev", "--port", port, env={"LEGATO_LEASE": "2"})


@pytest.fixture
async def dev(tmp_path: Path, port: str) -> AsyncIterator[Command]:
    with serve(tmp_path, port) as command:
        await command.says("Ctrl-C")
        yield command


def chat(directory: Path, port: str, session: str = "s") -> Command:
    return Command(directory, "chat", "--url", f"http://127.0.0.1:{port}", "--session", session, typed=True)


def words(output: str) -> list[int]:
    return [int(number) for number in re.findall(r"\bw(\d+)\b", output)]


async def test_it_shows_words_and_tools_and_what_was_said_before(dev: Command, tmp_path: Path, port: str) -> None:
    for turns in (1, 2, 3):
        with chat(tmp_path, port) as talk:
            talk.types('/tool lookup {"key": "k"}')
            assert talk.process.stdin
            talk.process.stdin.close()
            assert await talk.ended() == 0
        for shown in ("> /tool lookup", '→ lookup {"key": "k"}', "← lookup", "the value of k"):
            assert talk.output.count(shown) == turns, talk.output


async def test_killed_in_mid_turn_it_goes_on_where_it_was(dev: Command, tmp_path: Path, port: str) -> None:
    with chat(tmp_path, port) as talk:
        talk.types("/say 60 20")
        await talk.says("w30")
        talk.signal(signal.SIGKILL)
        await talk.ended()
    with chat(tmp_path, port) as again:
        output = await again.says("w60")
    assert words(output) == list(range(1, 61))


async def test_when_the_server_is_killed_it_reconnects_and_the_turn_goes_on(
    dev: Command, tmp_path: Path, port: str
) -> None:
    with chat(tmp_path, port) as talk:
        talk.types("/say 60 20")
        await talk.says("w10")
        dev.kill9()
        await talk.says("reconnecting")
        await dev.gone()
        with serve(tmp_path, port):
            output = await talk.says("w60", within=60)
            assert output.count("taken over by another instance") == 1
            assert words(output[output.index("said anew") :]) == list(range(1, 61))
            talk.types("/say 2")
            await talk.says("> /say 2")


async def test_a_turn_that_waits_is_answered_and_goes_on(dev: Command, tmp_path: Path, port: str) -> None:
    with chat(tmp_path, port) as talk:
        talk.types('/tool wire {"amount": 5}')
        output = await talk.says("waiting for you")
        assert '? Wire 5? (wire {"amount": 5})' in output
        talk.types("perhaps", "y go on")
        output = await talk.says("← wire")
    assert "— approved by me: go on" in output


async def test_without_anyone_to_answer_it_leaves_and_the_turn_waits_on(
    dev: Command, tmp_path: Path, port: str
) -> None:
    with chat(tmp_path, port) as talk:
        talk.types('/tool wire {"amount": 5}')
        assert talk.process.stdin
        talk.process.stdin.close()
        assert await talk.ended() == 0
        assert "the turn waits on" in talk.output
    with chat(tmp_path, port) as again:
        await again.says("waiting for you")
        again.types("y")
        await again.says("← wire")


async def test_ctrl_c_cancels_a_turn_that_waits_at_once(dev: Command, tmp_path: Path, port: str) -> None:
    with chat(tmp_path, port) as talk:
        talk.types('/tool wire {"amount": 5}')
        await talk.says("waiting for you")
        talk.signal(signal.SIGINT)
        await talk.says("■ interrupted", within=15)


async def test_at_a_restart_an_unfinished_turn_waits_for_a_server_that_is_not_up_yet(tmp_path: Path) -> None:
    asked = 0

    async def away(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        await reader.readuntil(b"\r\n\r\n")
        asked += 1
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(away, "127.0.0.1", 0) as server:
        port = str(server.sockets[0].getsockname()[1])
        with chat(tmp_path, port) as talk:
            assert await talk.ended() == 1
            assert "nothing answers there" in talk.output
        state = _state_directory(f"http://127.0.0.1:{port}", TOKEN, {"XDG_STATE_HOME": str(tmp_path)})
        FileStore(state).save("s", Saved(SessionState("s"), Sent("t_1", {"turn": "t_1", "input": "hi"})))
        asked = 0
        with chat(tmp_path, port) as talk:
            await until(lambda: asked >= 4, within=30)
            assert talk.process.poll() is None
            assert talk.output.count("reconnecting") == 1


async def test_where_its_state_cannot_be_kept_it_says_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with Command(tmp_path, "chat", env={"XDG_STATE_HOME": f"{tmp_path}/file"}) as talk:
        assert await talk.ended() == 2
        (line,) = talk.output.splitlines()
    assert f"{tmp_path}/file" in line
    assert "set XDG_STATE_HOME" in line


async def test_ctrl_c_cancels_the_turn_and_the_next_one_leaves(dev: Command, tmp_path: Path, port: str) -> None:
    with chat(tmp_path, port) as talk:
        talk.types("/say 1000 20")
        await talk.says("w5")
        talk.signal(signal.SIGINT)
        await talk.says("■ interrupted")
        talk.signal(signal.SIGINT)
        assert await talk.ended() == 130
        assert "--session s" in talk.output


async def test_a_second_ctrl_c_leaves_while_the_server_is_away(dev: Command, tmp_path: Path, port: str) -> None:
    with chat(tmp_path, port) as talk:
        talk.types("/say 1000 20")
        await talk.says("w5")
        dev.signal(signal.SIGKILL)
        await talk.says("reconnecting")
        talk.signal(signal.SIGINT)
        await talk.says("Ctrl-C again leaves")
        talk.signal(signal.SIGINT)
        assert await talk.ended() == 130


async def test_where_nothing_answers_it_says_what_to_start(tmp_path: Path, port: str) -> None:
    with chat(tmp_path, port) as talk:
        assert await talk.ended() == 1
        assert "legato dev" in talk.output
        assert "Traceback" not in talk.output


async def test_where_something_else_answers_it_says_so(tmp_path: Path) -> None:
    async def elsewhere(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(elsewhere, "127.0.0.1", 0) as server:
        with chat(tmp_path, str(server.sockets[0].getsockname()[1])) as talk:
            assert await talk.ended() == 1
    assert "no gateway" in talk.output
    assert "To come back" not in talk.output


async def test_where_the_gateway_is_at_another_path_it_says_so(tmp_path: Path) -> None:
    with Command(tmp_path, "dev", "--port", "0") as dev:
        await dev.says("Ctrl-C")
        port = dev.output.split("http://127.0.0.1:")[1].split()[0]
        with chat(tmp_path, f"{port}/elsewhere") as talk:
            assert await talk.ended() == 1
    assert "Is a path missing in --url?" in talk.output
