"""`legato dev`: several processes behind one port, and their ends."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from commands import Command, until
from harness.caller import Caller
from legato.dev.supervisor import Dev


def url_of(dev: Command) -> str:
    found = re.search(r"http://127\.0\.0\.1:\d+", dev.output)
    assert found, dev.output
    return found[0]


def workers_of(dev: Command) -> list[int]:
    return [pid for pid in dev.alive() if pid != dev.process.pid]


@pytest.fixture
async def dev(tmp_path: Path) -> AsyncIterator[Command]:
    with Command(tmp_path, "dev", "--port", "0") as command:
        await command.says("Ctrl-C")
        yield command


async def instance_of(dev: Command) -> str:
    answer = await Caller(url_of(dev)).request("GET", "/health")
    return str(answer.headers["Legato-Instance"])


async def test_connections_go_to_every_worker_in_turn(dev: Command) -> None:
    first, second, third = [await instance_of(dev) for _ in range(3)]
    assert first != second
    assert first == third


async def test_a_cut_turn_is_resumed_on_the_other_instance(dev: Command) -> None:
    caller = Caller(url_of(dev))
    async with caller.start("s", "/say 30 40", turn="t") as first:
        await first.until(lambda message: '"w9 "' in message.data)
    async with caller.events("s", after=first.cursor, turn="t") as rest:
        await rest.rest()
    assert rest.headers["Legato-Instance"] != first.headers["Legato-Instance"]
    assert first.text + rest.text == "".join(f"w{number} " for number in range(1, 31))


async def test_it_says_how_soon_another_goes_on_with_a_dead_workers_turns(dev: Command, tmp_path: Path) -> None:
    assert "within 4 s (LEGATO_LEASE)" in dev.output
    with Command(tmp_path, "dev", "--port", "0", "--instances", "1", env={"LEGATO_LEASE": "7"}) as other:
        await other.says("within 7 s (LEGATO_LEASE)")


async def test_what_to_try_names_the_laptops_token_only_where_it_counts(dev: Command, tmp_path: Path) -> None:
    assert "Bearer dev:me" in dev.output
    with Command(tmp_path, "dev", "--port", "0", "--instances", "1", env={"LEGATO_AUTH": "firebase:some"}) as other:
        output = await other.says("Ctrl-C")
    assert "Bearer $TOKEN" in output
    assert "dev:me" not in output


async def test_a_killed_worker_is_replaced_and_said_so_in_one_line(dev: Command) -> None:
    before, lines = set(workers_of(dev)), len(dev.output.splitlines())
    killed = min(before)
    os.kill(killed, signal.SIGKILL)
    output = await dev.says(f"worker {killed} was ended by SIGKILL; starting another", within=5)
    assert len(output.splitlines()) == lines + 1
    await until(lambda: len(set(workers_of(dev)) - before) == 1, within=5)


async def test_a_worker_that_the_machine_cannot_start_is_tried_again(sqlite_url: str) -> None:
    env, said = {**os.environ, "LEGATO_JOURNAL": sqlite_url}, list[str]()
    async with asyncio.timeout(60), Dev(0, 1, env, said.append) as dev:
        env["TOO_LONG_FOR_A_PROCESS"] = "x" * 2**20
        os.kill(dev.workers[0].pid, signal.SIGKILL)
        await until(lambda: any("no worker could be started" in line for line in said), within=10)
        del env["TOO_LONG_FOR_A_PROCESS"]
        await until(lambda: bool(dev.workers), within=20)


async def test_a_connection_goes_to_a_living_worker_while_another_is_dead(dev: Command) -> None:
    killed = min(workers_of(dev))
    os.kill(killed, signal.SIGKILL)
    await until(lambda: killed not in dev.alive(), within=5)
    assert {(await Caller(url_of(dev)).request("GET", "/health")).status_code for _ in range(4)} == {200}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_ends_everything(dev: Command, number: signal.Signals) -> None:
    dev.signal(number)
    assert await dev.ended() == 0
    assert not dev.alive()


async def test_a_signal_ends_a_running_turns_stream_with_a_last_frame(tmp_path: Path) -> None:
    with Command(tmp_path, "dev", "--port", "0", env={"LEGATO_DRAIN": "0.5"}) as dev:
        await dev.says("Ctrl-C")
        async with Caller(url_of(dev)).start("s", "/say 2000 20", turn="t") as answer:
            await answer.until("text.delta")
            dev.signal(signal.SIGINT)
            last = (await answer.rest())[-1]
            assert (last.event, '"draining"' in last.data, answer.broken) == ("stream.closing", True, False)
        assert await dev.ended() == 0
        assert not dev.alive()


async def test_a_second_signal_ends_everything_at_once(dev: Command) -> None:
    async with Caller(url_of(dev)).start("s", "/say 2000 20", turn="t") as answer:
        await answer.until("text.delta")
        dev.signal(signal.SIGINT)
        await until(lambda: _refuses(url_of(dev)), within=5)
        began = time.monotonic()
        dev.signal(signal.SIGINT)
        assert await dev.ended() == 0
        assert time.monotonic() - began < 2
        assert not dev.alive()


def _refuses(url: str) -> bool:
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", int(url.rsplit(":", 1)[1]))) != 0


async def test_a_worker_that_is_told_to_end_hands_its_turn_to_the_other(tmp_path: Path) -> None:
    with Command(tmp_path, "dev", "--port", "0", env={"LEGATO_DRAIN": "0.5"}) as dev:
        await dev.says("Ctrl-C")
        caller = Caller(url_of(dev))
        async with caller.start("s", "/say 2000 20", turn="t") as owned:
            await owned.until("text.delta")
            async with caller.events("s", turn="t", **{"from": "start"}) as followed:
                await followed.until("text.delta")
                os.kill(int(owned.headers["Legato-Instance"].split("-")[-2]), signal.SIGTERM)
                await followed.until("turn.resumed", timeout=5)


async def test_no_worker_outlives_a_supervisor_that_is_killed(dev: Command) -> None:
    assert len(workers_of(dev)) == 2
    dev.signal(signal.SIGKILL)
    await dev.gone(within=6)


STUCK = """
import pathlib, time
async def agent(turn):
    pathlib.Path("entered").touch()
    time.sleep(600)
"""


async def test_a_worker_whose_agent_blocks_it_ends_with_its_supervisor_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(STUCK)
    with Command(tmp_path, "dev", "--port", "0", "--agent", "stuck:agent") as dev:
        await dev.says("Ctrl-C")
        asking = asyncio.create_task(Caller(url_of(dev)).begin("s", "go"))
        await until((tmp_path / "entered").exists, within=10)
        dev.signal(signal.SIGTERM)
        assert await dev.ended() == 0
        assert not dev.alive()
        await asyncio.gather(asking, return_exceptions=True)


async def refusal(directory: Path, *arguments: str, **env: str) -> str:
    with Command(directory, "dev", "--port", "0", *arguments, env=env) as dev:
        assert await dev.ended() == 2, dev.output
        await dev.gone()
        assert dev.output.count("\n") == 1, dev.output
        return dev.output


async def test_a_taken_port_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"port {port} cannot be used" in await refusal(tmp_path, "--port", port)


async def test_a_journal_that_cannot_be_written_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert f"{tmp_path}/file" in await refusal(tmp_path, "--journal", f"sqlite:///{tmp_path}/file/journal.sqlite")


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        ("nowhere:agent", "No module named 'nowhere'"),
        ("json:nothing", "nothing"),
        ("broken:agent", "ZeroDivisionError"),
        ("unset:agent", "unset.py:2)"),
    ],
)
async def test_an_agent_that_cannot_be_imported_is_one_line_and_exit_code_2(
    tmp_path: Path, agent: str, said: str
) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "unset.py").write_text("import os\nos.environ['NOBODY_SET_THIS']")
    assert said in await refusal(tmp_path, "--agent", agent)


async def test_a_wrong_setting_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    assert "LEGATO_PING='often'" in await refusal(tmp_path, LEGATO_PING="often")


async def test_the_laptops_identity_is_refused_on_the_platform(tmp_path: Path) -> None:
    assert "K_SERVICE" in await refusal(tmp_path, K_SERVICE="service")
