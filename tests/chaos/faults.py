"""What befalls a cluster, one thing after the other, drawn from a chance that a seed makes again."""

from __future__ import annotations

import asyncio
import random
import subprocess
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import grpc

from chaos.cluster import LEASE, Cluster
from chaos.lives import TIMING
from e2e.outages import Store
from journal.grpc_proxy import GrpcProxy

CODES: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED, grpc.StatusCode.DEADLINE_EXCEEDED)
OWNERS: Final = 2
"""A turn that costs one owner more fails as a crash loop."""
OTHERS: Final = 3
Strike = Callable[[random.Random], Awaitable[None]]
"""A fault of the store; returns when it is over."""


class Faults:
    """`struck` counts what happened, by kind. Each is over when its method returns, and both instances are up."""

    def __init__(self, on: Cluster, store: Mapping[str, Strike], chance: random.Random) -> None:
        self.struck: Counter[str] = Counter()
        self._on, self._chance = on, chance
        self._owners: Mapping[str, Strike] = {
            "kill -9": self._kill,
            "SIGSTOP": self._freeze,
            "SIGTERM": self._terminate,
        }
        self._others: Mapping[str, Strike] = {
            "cut": self._cut,
            "reset": self._reset,
            "half-open": self._swallow,
            **store,
        }

    async def strike(self) -> None:
        """Some faults in a row, of which one costs an owner at least, and OWNERS at most."""
        drawn = self._chance.choices(sorted(self._owners), k=self._chance.randint(1, OWNERS))
        drawn += self._chance.choices(sorted(self._others), k=self._chance.randint(1, OTHERS))
        self._chance.shuffle(drawn)
        for kind in drawn:
            await asyncio.sleep(self._chance.uniform(0.3, LEASE))
            self.struck[kind] += 1
            await {**self._owners, **self._others}[kind](self._chance)

    async def _kill(self, _: random.Random) -> None:
        victim = self._on.swap()
        victim.kill9()
        await victim.start()

    async def _terminate(self, _: random.Random) -> None:
        victim = self._on.swap()
        try:
            await victim.terminate()
        except subprocess.TimeoutExpired:
            victim.kill9()
        await victim.start()

    async def _freeze(self, chance: random.Random) -> None:
        """For longer than its lease, and at times for longer than its clients wait for a word of it."""
        victim = self._on.swap()
        victim.sigstop()
        await asyncio.sleep(LEASE + chance.uniform(0.1, TIMING.silence + 1))
        victim.sigcont()

    async def _cut(self, _: random.Random) -> None:
        self._on.hop.cut()

    async def _reset(self, _: random.Random) -> None:
        self._on.hop.reset = True
        self._on.hop.cut()
        self._on.hop.reset = False

    async def _swallow(self, _: random.Random) -> None:
        """Connections stay open and carry nothing, for longer than a client bears."""
        self._on.hop.hold()
        await asyncio.sleep(TIMING.silence + 0.5)
        self._on.hop.release()


def away(store: Store) -> Mapping[str, Strike]:
    """The whole store does not answer for a moment."""

    async def strike(chance: random.Random) -> None:
        async with store.away():
            await asyncio.sleep(chance.uniform(0.05, LEASE / 2))

    return {"store away": strike}


def refusing(proxy: GrpcProxy) -> Mapping[str, Strike]:
    """Some of Firestore's next calls fail, or are done and not answered."""

    async def strike(chance: random.Random) -> None:
        for _ in range(chance.randint(1, 6)):
            fail = chance.choice((proxy.refuse, proxy.lose))
            fail(chance.choice(CODES), skip=chance.randint(0, 8))

    return {"store errors": strike}
