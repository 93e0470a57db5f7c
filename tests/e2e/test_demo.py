"""`legato demo`, as `make demo` runs it."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
from pathlib import Path

from commands import Command

SHOWN = [
    "cut after event 13", "Last-Event-ID: 1-13", "→ transfer", "✗ kill -9", "↻ taken over by another instance",
    "← transfer", "w21", "? Wire 5?", "✓ POST", "— approved by me", "← wire", "w39 w40", "None is missing", "ran once",
]  # fmt: skip
"""In this order."""


async def test_it_shows_the_seams_and_exits_0_without_a_terminal(tmp_path: Path) -> None:
    with Command(tmp_path, "demo") as demo:
        assert await demo.ended(within=45) == 0, demo.output
        at = [demo.output.find(words) for words in SHOWN]
        assert at == sorted(at), demo.output
        assert at[0] >= 0, demo.output
        await demo.gone()


async def test_it_leaves_neither_process_nor_file_when_stopped_in_mid_turn(tmp_path: Path) -> None:
    with Command(tmp_path, "demo", env={"TMPDIR": str(tmp_path)}) as demo:
        await demo.says("w3")
        demo.signal(signal.SIGTERM)
        assert await demo.ended() == 130
        await demo.gone()
    assert not [name for name in os.listdir(tmp_path) if name.startswith("legato-demo-")]


async def test_its_workers_end_when_it_is_killed(tmp_path: Path) -> None:
    with Command(tmp_path, "demo", env={"TMPDIR": str(tmp_path)}) as demo:
        await demo.says("w3")
        assert len(demo.alive()) == 3
        demo.signal(signal.SIGKILL)
        await demo.gone()


async def test_in_a_terminal_it_goes_on_as_a_chat(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with Command(tmp_path, "demo", terminal=theirs) as demo:
        os.close(theirs)
        await asyncio.to_thread(read_until, ours, "Now you")
        os.write(ours, b"/say 41\n")
        await asyncio.to_thread(read_until, ours, "w41")
        os.write(ours, b"\x04")
        assert await demo.ended() == 0
        await demo.gone()
    os.close(ours)


async def test_ctrl_c_at_its_prompt_leaves_as_ctrl_d_does(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with Command(tmp_path, "demo", terminal=theirs) as demo:
        os.close(theirs)
        await asyncio.to_thread(read_until, ours, "Now you")
        demo.signal(signal.SIGINT)
        assert await demo.ended() == 0
        await demo.gone()
    os.close(ours)


def read_until(terminal: int, text: str) -> None:
    shown = ""
    while text not in shown:
        shown += os.read(terminal, 65536).decode(errors="replace")
