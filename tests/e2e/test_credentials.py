"""A token that runs out costs a turn nothing: tools are given a fresh one, all of them the same."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from conftest import Place
from e2e.following import AGENTS, journaled, seq
from harness import Server
from harness.issuer import SECRET, Issuer

LIFE = 3.0
"""Seconds that a token counts."""
CALLS = 20
SECRETS = ("token-", "refresh-secret", "client-secret", SECRET)


@pytest.fixture
def journal_url(sqlite_url: str) -> str:
    """What a token costs does not depend on the store."""
    return sqlite_url


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer(LIFE) as running:
        yield running


@pytest.fixture
async def server(place: Place, issuer: Issuer) -> AsyncIterator[Server]:
    mine = {"LEGATO_AGENT": "bearers:agent", "LEGATO_CREDENTIALS": "bearers:credentials", "ISSUER": issuer.url}
    async with place.server("a", **AGENTS, **mine) as running:
        yield running


def told(place: Place) -> list[str]:
    """The secrets that are in the journal's files or the log."""
    kept = b"".join(path.read_bytes() for path in place.directory.iterdir())
    return [secret for secret in SECRETS if secret.encode() in kept]


async def test_twenty_calls_with_tokens_of_three_seconds_share_few_refreshes(
    server: Server, issuer: Issuer, place: Place
) -> None:
    """They last twice as long as a token counts; every request is taken, at its first attempt, and the stream is
    whole. Nothing of a credential is in what was stored, streamed or logged."""
    pair = '/parallel ask {"seconds": 0.6} ask {"seconds": 0}\n'
    async with server.caller().start("s", pair * (CALLS // 2) + "/say 5", "t") as stream:
        await stream.rest()
    results = [event for event in stream.events if event["type"] == "tool.result"]
    assert [(event["ok"], event["content"]) for event in results] == [(True, 200)] * CALLS
    assert len(issuer.requests) == CALLS
    assert 2 <= len(issuer.grants) <= 5
    assert [seq(data) for data in journaled(stream.messages)] == list(range(1, len(stream.events) + 1))
    assert (stream.text, stream.messages[-1].event) == ("w1 w2 w3 w4 w5 ", "turn.completed")
    assert told(place) == []


async def test_a_token_that_is_revoked_in_mid_turn_costs_one_request(server: Server, issuer: Issuer) -> None:
    """The tools, `once` both of them, are entered once."""
    issuer.revoked.add("token-1")
    async with server.caller().start("s", '/tool ask {"seconds": 0}\n/tool ask_in_a_thread {}\n/say 1', "t") as stream:
        await stream.rest()
    assert [event["content"] for event in stream.events if event["type"] == "tool.result"] == [200, 200]
    assert issuer.shown() == ["token-1", "token-2", "token-2"]


async def test_an_endpoint_that_refuses_settles_the_call_and_not_the_turn(
    server: Server, issuer: Issuer, place: Place
) -> None:
    issuer.refusal = "invalid_grant"
    async with server.caller().start("s", '/tool ask {"seconds": 0}\n/say 1', "t") as stream:
        await stream.rest()
    (error,) = [event["error"] for event in stream.events if event["type"] == "tool.result"]
    assert (error["code"], stream.messages[-1].event) == ("credential_unavailable", "turn.completed")
    assert "invalid_grant" in server.output()
    assert told(place) == []
