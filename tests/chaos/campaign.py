"""Turns whose owners are killed at random moments, round after round."""

from __future__ import annotations

import asyncio
import random
from typing import NamedTuple

from chaos.cluster import LEASE, Cluster
from chaos.lives import SCRIPT_SECONDS, Life, Lived

TURNS = 20


class Killed(NamedTuple):
    """What became of turns whose owners were killed, at `moments` in all."""

    calm: Life
    lives: list[Life]
    moments: int


class Campaign:
    """Rounds of TURNS turns begun one after the other on one instance, so that its death finds each at another
    moment."""

    def __init__(self, on: Cluster, seed: int) -> None:
        self._on = on
        self._chance = random.Random(seed)
        self._moments = 0

    async def run(self, rounds: int) -> Killed:
        calm = await self._on.calm()
        lives = [life for number in range(rounds) for life in await self._round(number)]
        return Killed(calm, lives, self._moments)

    async def _round(self, number: int) -> list[Life]:
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
        self._moments += sum(not client.done() for client in clients)
        victim = self._on.swap()
        victim.kill9()
        await asyncio.gather(victim.start(), asyncio.sleep(then))
