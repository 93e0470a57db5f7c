"""Turns among faults: `make chaos [SEED=7] [RUNS=60]`. Prints its figures; 1 when a rule is broken, with the seed.

The seed makes the same draws again; what they meet is up to the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from chaos.cluster import Cluster, cluster
from chaos.faults import Faults, away, refusing
from chaos.lives import SCRIPT_SECONDS, Life, Lived, broken
from chaos.report import Figures, table
from conftest import Place
from e2e.outages import sqlite_store
from harness import Emulator, find_emulator
from journal.grpc_proxy import GrpcProxy

AT_ONCE = 8


async def main(seed: int, runs: int) -> int:
    chance, faulty = random.Random(seed), False
    for store, place in {"sqlite": on_sqlite, "firestore": on_firestore}.items():
        with TemporaryDirectory() as directory:
            async with place(Path(directory), chance) as (on, faults):
                figures = await play(store, on, faults, chance, runs)
        print(table(figures), flush=True)
        for rule, sessions in figures.broken.items():
            faulty = True
            print(f"BROKEN: {rule}: {', '.join(sessions)}; make chaos SEED={seed} RUNS={runs}", flush=True)
    return int(faulty)


@asynccontextmanager
async def on_sqlite(directory: Path, chance: random.Random) -> AsyncIterator[tuple[Cluster, Faults]]:
    store = sqlite_store(directory)
    async with cluster(Place(store.url, "asgi", directory)) as on:
        yield on, Faults(on, away(store), chance)


@asynccontextmanager
async def on_firestore(directory: Path, chance: random.Random) -> AsyncIterator[tuple[Cluster, Faults]]:
    url = f"firestore://demo-{uuid4().hex[:20]}/(default)"
    with Emulator(find_emulator(), directory / "emulator.log") as emulator:
        async with (
            GrpcProxy(emulator.host) as proxy,
            cluster(Place(url, "asgi", directory), FIRESTORE_EMULATOR_HOST=proxy.host) as on,
        ):
            yield on, Faults(on, refusing(proxy), chance)


async def play(store: str, on: Cluster, faults: Faults, chance: random.Random, runs: int) -> Figures:
    """`runs` turns, AT_ONCE of them begun at different moments of each round's faults."""
    calm = await on.calm()
    lives, lost = list[Life](), list[str]()
    for begin in range(0, runs, AT_ONCE):
        names = [f"run-{number}" for number in range(begin, min(runs, begin + AT_ONCE))]
        clients = [_late(on, name, chance.uniform(0, SCRIPT_SECONDS)) for name in names]
        *ends, struck = await asyncio.gather(*clients, faults.strike(), return_exceptions=True)
        if isinstance(struck, BaseException):
            raise struck
        lives += await on.told([end for end in ends if isinstance(end, Lived)])
        lost += [f"{name} ({end!r})" for name, end in zip(names, ends, strict=True) if not isinstance(end, Lived)]
        print(f"{store}: {begin + len(names)} of {runs}", file=sys.stderr, flush=True)
    ended = {"the turn reaches an end": lost} if lost else {}
    return Figures(store, lives, lost, faults.struck, {**ended, **broken(lives, calm)})


async def _late(on: Cluster, session: str, delay: float) -> Lived:
    await asyncio.sleep(delay)
    return await on.scene.live(session)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="make chaos")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--runs", type=int, default=40)
    chosen = parser.parse_args()
    sys.exit(asyncio.run(main(chosen.seed, chosen.runs)))
