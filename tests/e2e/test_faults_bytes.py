"""Text and results arrive as they were said, whatever bytes they are of, in every way of reading them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from e2e.duo import Duo, on_both_faces
from e2e.following import journaled, reduced
from harness import Answer, Caller, TcpProxy
from legato.client import LegatoClient
from legato.sse import Message

START = {"from": "start"}
BREAKS = ["\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\x00", "\ufeff"]
FIELDS = ["data: x", "\n\nid: 9-9\nevent: turn.completed\ndata: {}\n\n", "event: x\r\rretry: 1\r\n\r\n", ": ping\n\n"]
PIECES = [f"a{mark}b" for mark in BREAKS] + FIELDS + ["\U0001f600", "e\u0301", '"\\', "\\u2028"]
TEXT = "".join(PIECES)
EMOJI = "\U0001f600"


def spoken(messages: list[Message]) -> str:
    events = [json.loads(message.data) for message in messages if message.event == "text.delta"]
    return "".join(event["text"] for event in events)


async def polled(duo: Duo, session: str) -> list[dict[str, Any]]:
    """The turn's events as the long poll gives them."""
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] != "turn.completed":
        after = f"after={events[-1]['epoch']}-{events[-1]['seq']}" if events else "from=start"
        answer = await duo.b.caller().request("GET", f"/v1/sessions/{session}/events?turn=t&wait=20&{after}")
        events += answer.json()["events"]
    return events


@on_both_faces
async def test_text_of_any_bytes_is_the_same_in_every_way_of_reading_it(duo: Duo, session: str) -> None:
    async with duo.a.caller().start(session, PIECES, "t", agent="pieces") as live:
        told = await live.rest()
    assert spoken(told) == TEXT
    assert {message.event for message in told} == {"turn.started", "text.delta", "turn.completed"}
    assert [message.id for message in told] == [f"1-{number}" for number in range(1, len(PIECES) + 3)]
    assert await duo.replay(session, "t") == journaled(told)
    assert [event["type"] for event in await polled(duo, session)] == [message.event for message in told]
    snapshot = (await duo.b.caller().snapshot(session)).json()
    assert (snapshot["turns"][0]["output"], snapshot["turns"][0]["input"]) == (TEXT, PIECES)


async def test_a_client_reads_text_of_any_bytes(duo: Duo, session: str) -> None:
    http = httpx.AsyncClient(trust_env=False, verify=False)
    async with http, LegatoClient(duo.a.url, "dev:ann", http=http) as client:
        async with client.turn(session, TEXT, turn="t", agent="units") as run:
            updates = [update async for update in run]
        assert updates[-1].state.turns[-1].output == TEXT
        assert await client.snapshot(session) == updates[-1].state


async def test_a_pair_of_surrogates_said_in_halves_arrives_whole(duo: Duo, session: str) -> None:
    async with duo.a.caller().start(session, "a\U0001f600\U0001f1e9\U0001f1ea", "t", agent="units") as live:
        told = await live.rest()
    assert spoken(told) == "a\U0001f600\U0001f1e9\U0001f1ea"
    assert told[-1].event == "turn.completed"
    assert await duo.replay(session, "t") == journaled(told)


async def cut_after(duo: Duo, session: str, size: int) -> Answer:
    """What arrives of a replay that is cut off after so many bytes of HTTP."""
    async with (
        TcpProxy(duo.b.port, cut_after=size) as hop,
        Caller(hop.url).events(session, turn="t", **START) as answer,
    ):
        await answer.rest()
    return answer


async def test_a_stream_cut_inside_an_emoji_is_resumed_with_the_emoji_whole(duo: Duo, session: str) -> None:
    said = ["x" * 4000, f"a{EMOJI}b", "c"]
    await duo.a.caller().begin(session, said, "t", agent="pieces")
    await duo.rest(duo.a, session, turn="t")
    whole = await duo.rest(duo.b, session, turn="t", **START)
    overhead = 6000 - len((await cut_after(duo, session, 6000)).raw)  # behind the opening, in the emoji's own chunk
    for size in range(1, 5):
        end = whole.raw.rindex(f'"text":"a{EMOJI}'.encode()) + len('"text":"a') + size
        told = await cut_after(duo, session, end + overhead)
        assert told.raw == whole.raw[:end]
        rest = await duo.rest(duo.b, session, told.cursor, turn="t")
        assert spoken([*told.messages, *rest.messages]) == "".join(said)
        assert journaled([*told.messages, *rest.messages]) == journaled(whole.messages)


async def test_results_of_any_bytes_settle_their_calls_and_the_turn_goes_on(duo: Duo, session: str) -> None:
    """A lone surrogate is no UTF-8: that call ends as `bad_result`, and neither journal nor reader sees it."""
    async with duo.a.caller().start(session, TEXT, "t", agent="results") as live:
        told = await live.rest()
    results = [json.loads(message.data) for message in told if message.event == "tool.result"]
    assert [result["ok"] for result in results] == [True, False, False]
    assert results[0]["content"] == TEXT
    assert results[1]["error"]["code"] == "bad_result"
    assert told[-1].event == "turn.completed"
    assert await duo.replay(session, "t") == journaled(told)
    fresh = (await duo.b.caller().snapshot(session)).json()
    assert fresh["turns"][0]["tools"][0]["content"] == TEXT


@on_both_faces
@pytest.mark.parametrize(("size", "ok"), [(900_000, True), (1_100_000, True), (5 * 1024 * 1024, False)])
async def test_a_large_result_arrives_whole_or_is_refused_and_the_turn_goes_on(
    duo: Duo, session: str, size: int, ok: bool
) -> None:
    script = f'/say 2\n/tool big {{"bytes": {size}}}\n/say 2'
    async with duo.a.caller().start(session, script, "t") as live:
        await live.until("tool.call")
        follower = await duo.rest(duo.b, session, live.cursor, turn="t")
        told = await live.rest()
    result = next(json.loads(message.data) for message in told if message.event == "tool.result")
    assert (result["ok"], result.get("content")) == (ok, "x" * size if ok else None)
    assert ok or result["error"]["code"] == "result_too_large"
    assert (live.text, told[-1].event) == ("w1 w2 w3 w4 ", "turn.completed")
    assert journaled(follower.messages) == journaled(told)[-len(follower.messages) :]
    assert await duo.replay(session, "t") == journaled(told)


async def test_a_resume_right_behind_a_large_result_is_exact(duo: Duo, session: str) -> None:
    script = '/tool big {"bytes": 1100000}\n/say 30 100\n/tool big {"bytes": 1100000}\n/say 2'
    async with duo.a.caller().start(session, script, "t") as cut:
        told = list(await cut.until("tool.result"))
    rest = await duo.rest(duo.b, session, cut.cursor, turn="t")
    assert journaled([*told, *rest.messages]) == await duo.replay(session, "t")
    assert reduced(session, [*told, *rest.messages]).turns[-1].output == rest.text
