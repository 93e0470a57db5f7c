"""A turn cut after any of its events and resumed on another process is the turn itself, byte for byte."""

from __future__ import annotations

import asyncio

from conftest import Place
from harness import Server
from legato.sse import Message

SCRIPT = '/say 28 60\n/tool transfer {"amount": 7}\n/say 28 60'
EVENTS = 60


def journaled(messages: list[Message]) -> list[str]:
    return [message.data for message in messages if message.id is not None]


async def cut_and_resumed(a: Server, b: Server, k: int) -> tuple[list[str], list[str], list[str]]:
    """The events up to the k-th on one process, the rest on the other, and the turn as the other replays it."""
    session, turn = f"cut-{k}", f"turn-{k}"
    async with a.caller().start(session, SCRIPT, turn) as first:
        prefix = list(await first.until(lambda message: message.data.startswith(f'{{"seq":{k},')))
    async with b.caller().events(session, first.cursor, turn=turn) as second:
        rest = list(await second.rest())
    if k == EVENTS:
        assert second.status == 204
    async with b.caller().events(session, turn=turn, **{"from": "start"}) as whole:
        return journaled(prefix), journaled(rest), journaled(await whole.rest())


async def test_every_cut_is_resumed_exactly_on_another_process(pair: tuple[Server, Server], place: Place) -> None:
    a, b = pair
    runs = await asyncio.gather(*(cut_and_resumed(a, b, k) for k in range(1, EVENTS + 1)))
    for k, (prefix, rest, whole) in enumerate(runs, 1):
        assert len(whole) == EVENTS
        assert len(prefix) == k
        assert prefix + rest == whole, f"cut after event {k}"
    ledger = place.ledger.read_text().splitlines()
    assert len(ledger) == len(set(ledger)) == len(runs)
