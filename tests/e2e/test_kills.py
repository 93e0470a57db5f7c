"""Owners are killed at random moments of their turns, and no client can tell from what its turn has come to."""

from __future__ import annotations

import asyncio
import json
import os
import random
from typing import NamedTuple

import pytest

from chaos.cluster import LEASE, Cluster, cluster
from chaos.lives import RULES, SCRIPT_SECONDS, Life, Lived
from conftest import Place
from e2e.conftest import journal_at
from e2e.duo import HERE, Where

SEED = int(os.environ.get("SEED", "1"))
ROUNDS, TURNS = 5, 20


class Killed(NamedTuple):
    """What became of turns whose owners were killed, at `moments` in all."""

    calm: Life
    lives: list[Life]
    moments: int


class Campaign:
    """Rounds of turns begun one after the other on one instance, so that its death finds each at another moment."""

    def __init__(self, on: Cluster) -> None:
        self._on = on
        self._chance = random.Random(SEED)
        self.moments = 0

    async def round(self, number: int) -> list[Life]:
        """The first owner of all of them is killed, then the next one, of those that it has taken over by then."""
        delays = [self._chance.uniform(0, SCRIPT_SECONDS) for _ in range(TURNS)]
        clients = [asyncio.create_task(self._client(f"r{number}-{i}", delay)) for i, delay in enumerate(delays)]
        await asyncio.sleep(SCRIPT_SECONDS)
        await self._kill(clients, then=self._chance.uniform(LEASE, LEASE + SCRIPT_SECONDS))
        await self._kill(clients, then=0)
        return await self._on.told(await asyncio.gather(*clients))

    async def _client(self, session: str, delay: float) -> Lived:
        await asyncio.sleep(delay)
        return await self._on.scene.live(session)

    async def _kill(self, clients: list[asyncio.Task[Lived]], then: float) -> None:
        """Kills the instance that serves and starts it again; returns `then` seconds later at the earliest."""
        self.moments += sum(not client.done() for client in clients)
        victim = self._on.swap()
        victim.kill9()
        await asyncio.gather(victim.start(), asyncio.sleep(then))


async def campaign(place: Place) -> Killed:
    async with cluster(place) as on:
        calm, rounds = await on.calm(), Campaign(on)
        lives = [life for number in range(ROUNDS) for life in await rounds.round(number)]
        return Killed(calm, lives, rounds.moments)


@pytest.fixture(scope="module", params=HERE)
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    where: Where = request.param
    directory = tmp_path_factory.mktemp(f"kills-{where.store}")
    return asyncio.run(campaign(Place(journal_at(where, directory, request), where.face, directory)))


def test_an_undisturbed_turn_keeps_the_rules(killed: Killed) -> None:
    calm = killed.calm
    assert calm.output == "".join(f"w{n} " for n in range(1, 43))
    assert (calm.paid, calm.takeovers) == (["-/t/3-1", "-/t/4-1"], 0)
    assert [len(json.loads(asked)) for asked in calm.asked] == [0, 1, 2, 3, 5]


@pytest.mark.parametrize("rule", RULES)
def test_whatever_the_moment_at_which_its_owner_is_killed(killed: Killed, rule: str) -> None:
    assert killed.moments >= 100
    assert [life.session for life in killed.lives if not RULES[rule](life, killed.calm)] == [], f"SEED={SEED}"
