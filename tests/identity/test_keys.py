"""Published keys are fetched once for all who wait, kept while they are fresh, and used on where nobody answers."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from harness.google import CERTIFICATES, Google
from harness.signer import Signer
from identity.conftest import Clock
from legato.auth.firebase import certificates
from legato.auth.keys import PATIENCE, Keys, lifetime
from legato.errors import KeysUnavailable


@pytest.fixture
def keys(google: Google, http: httpx.AsyncClient, clock: Clock) -> Keys[str]:
    return Keys(f"{google.url}{CERTIFICATES}", certificates, http, clock)


async def test_fifty_who_ask_at_once_are_answered_by_one_request(keys: Keys[str], google: Google) -> None:
    google.answering.clear()
    asking = [asyncio.create_task(keys.find("key-1")) for _ in range(50)]
    await google.arrived.wait()
    google.answering.set()
    assert set(await asyncio.gather(*asking)) == {google.signers[0].certificate}
    assert google.asked[CERTIFICATES] == 1


async def test_who_stops_waiting_takes_nothing_from_the_others(keys: Keys[str], google: Google) -> None:
    google.answering.clear()
    first, second = (asyncio.create_task(keys.find("key-1")) for _ in range(2))
    await google.arrived.wait()
    first.cancel()
    google.answering.set()
    assert await second
    assert google.asked[CERTIFICATES] == 1


async def test_keys_are_kept_as_long_as_their_answer_says(keys: Keys[str], google: Google, clock: Clock) -> None:
    google.cache = "public, max-age=600"
    for ahead, asked in ((0, 1), (599_000, 1), (601_000, 2), (1_199_000, 2), (1_203_000, 3)):
        clock.ahead = ahead
        assert await keys.find("key-1")
        assert google.asked[CERTIFICATES] == asked


async def test_a_key_that_is_taken_back_counts_no_more_once_its_time_is_over(
    keys: Keys[str], google: Google, successor: Signer, clock: Clock
) -> None:
    await keys.find("key-1")
    google.signers, clock.ahead = [successor], 3_601_000
    assert await keys.find("key-1") is None


@pytest.mark.parametrize(
    ("status", "body"), [(500, b""), (404, b""), (200, b"<html>"), (200, b"{}"), (200, b'{"key-1": "x"}')]
)
async def test_known_keys_are_used_while_nobody_gives_better_ones(
    keys: Keys[str], google: Google, clock: Clock, status: int, body: bytes
) -> None:
    known = await keys.find("key-1")
    google.status, google.body, clock.ahead = status, body, 86_400_000
    assert await keys.find("key-1") == known
    with pytest.raises(KeysUnavailable):
        await keys.find("key-2")
    assert google.asked[CERTIFICATES] == 2


async def test_known_keys_are_used_while_the_answer_is_slow_and_wait_for_it_but_briefly(
    keys: Keys[str], google: Google, clock: Clock
) -> None:
    known = await keys.find("key-1")
    google.answering.clear()
    clock.ahead = 3_601_000
    async with asyncio.timeout(PATIENCE * 4):
        assert await keys.find("key-1") == known


async def test_an_answer_that_never_comes_is_given_up(google: Google, http: httpx.AsyncClient, clock: Clock) -> None:
    keys = Keys(f"{google.url}{CERTIFICATES}", certificates, http, clock, seconds=0.2)
    google.answering.clear()
    with pytest.raises(KeysUnavailable):
        await keys.find("key-1")


async def test_after_a_failure_it_is_asked_again_a_second_later(keys: Keys[str], google: Google, clock: Clock) -> None:
    google.status = 503
    for _ in range(5):
        with pytest.raises(KeysUnavailable):
            await keys.find("key-1")
    assert google.asked[CERTIFICATES] == 1
    google.status, clock.ahead = 200, 1_001
    assert await keys.find("key-1")


async def test_keys_nobody_has_published_are_asked_for_every_ten_seconds_at_most(
    keys: Keys[str], google: Google, clock: Clock
) -> None:
    for ahead, asked in ((0, 1), (9_000, 1), (11_000, 2), (12_000, 2)):
        clock.ahead = ahead
        assert await asyncio.gather(*(keys.find(f"made-up-{n}") for n in range(20))) == [None] * 20
        assert google.asked[CERTIFICATES] == asked


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"cache-control": "public, max-age=19302, must-revalidate, no-transform", "age": "302"}, 19000),
        ({"cache-control": "Max-Age=60"}, 60),
        ({"cache-control": "max-age=60", "age": "90"}, 0),
        ({"cache-control": "s-maxage=60"}, 3600),
        ({"cache-control": "max-age=999999999"}, 86400),
        ({"cache-control": "max-age=-1", "age": "soon"}, 3600),
        ({}, 3600),
    ],
)
def test_a_lifetime_is_what_is_left_of_the_one_said(headers: dict[str, str], seconds: int) -> None:
    assert lifetime(headers) == seconds
