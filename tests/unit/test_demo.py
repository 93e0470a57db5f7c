"""The demo agent's tools: what they do to the ledger, and what they can be asked for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from legato import ToolContext
from legato.demo import Entry, agent, big, lookup, slow, transfer
from legato.tools import Outcome


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "below" / "ledger.jsonl"
    monkeypatch.setenv("LEGATO_DEMO_LEDGER", str(path))
    return path


def lines(ledger: Path) -> list[str]:
    return ledger.read_text().splitlines() if ledger.exists() else []


def test_the_tools_declare_what_a_crash_may_do() -> None:
    effects = {tool.name: tool.effect for tool in agent.tools}
    once = dict.fromkeys(("transfer", "wire", "mail"), "once")
    assert effects == {"lookup": "read", "slow": "idempotent", **once, "big": "read"}


async def test_its_ledger_tells_what_became_of_a_transfer(ledger: Path) -> None:
    assert transfer.reconcile
    assert transfer.reconcile("s/t/1-1") is None
    await transfer.run({"amount": 5}, ToolContext("s/t/1-1"))
    assert transfer.reconcile("s/t/1-1").amount == 5
    assert transfer.reconcile("s/t/1-2") is None


def test_a_wire_asks_a_person_for_its_amount() -> None:
    (wire,) = (tool for tool in agent.tools if tool.name == "wire")
    assert wire.asks({"amount": 3}) == "Wire 3?"


async def test_a_transfer_enters_one_line_each_time_it_runs(ledger: Path) -> None:
    for amount in (5, 6):
        outcome = await transfer.run({"amount": amount}, ToolContext("s/t/1-1"))
        assert outcome == Outcome(True, {"key": "s/t/1-1", "amount": amount})
    assert lines(ledger) == ['{"key":"s/t/1-1","amount":5}', '{"key":"s/t/1-1","amount":6}']


async def test_a_transfer_cancelled_before_its_time_enters_nothing(ledger: Path) -> None:
    call = asyncio.create_task(transfer.run({"amount": 5, "seconds": 60}, ToolContext("k")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert lines(ledger) == []


async def test_a_transfer_reconciles_itself_by_its_key(ledger: Path) -> None:
    assert transfer.reconcile is not None
    assert transfer.reconcile("mine") is None
    await transfer.run({"amount": 5}, ToolContext("mine"))
    assert (transfer.reconcile("mine"), transfer.reconcile("other")) == (Entry(key="mine", amount=5), None)


async def test_slow_reports_progress_and_outlasts_any_proxy() -> None:
    told: list[float | None] = []
    outcome = await slow.run({"seconds": 0}, ToolContext("k", lambda _, fraction: told.append(fraction)))
    assert (outcome.content, told, slow.timeout > 600) == ({"seconds": 0.0}, [0.0, 1.0], True)


async def test_lookup_and_big_answer_what_they_are_asked() -> None:
    assert (await lookup.run({"key": "a"}, ToolContext("k"))).content == {"key": "a", "value": "the value of a"}
    assert (await big.run({"bytes": 5}, ToolContext("k"))).content == "xxxxx"
