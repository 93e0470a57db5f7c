"""One process of a simulated world: the whole of Legato, its own clock, its own way to the store."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from itertools import count
from random import Random
from typing import Any, Protocol

from legato.auth import Developers
from legato.engine.run import Engine
from legato.engine.runtime import Runtime
from legato.gateway import Gateway
from legato.journal import SessionKey
from legato.journal.wakeups import Waiters
from legato.models import ModelRequest
from legato.settings import Settings
from legato.stream import Stream
from legato.sweeper import Sweeper
from legato.vault import Vault
from simulation.client import Pipe, serve
from simulation.loop import Process, VirtualLoop
from simulation.network import Network, Weather
from simulation.store import Store
from simulation.watch import Watch
from simulation.work import AGENTS, HOST, TIMEOUT, answered_once

KEY = SessionKey("ann", "s1")
EPOCH_MS = 1_796_050_000_000
SKEW_MS = 2_000
ANSWERED_SECONDS = 30.0
VAULT = Vault([b"v" * 32])


class Surroundings(Protocol):
    """What all instances share."""

    loop: VirtualLoop
    random: Random
    watch: Watch
    waiters: Waiters[SessionKey]
    store: Store
    weather: Weather
    settings: Settings
    ever: list[Instance]

    def strike_tool(self, instance: Instance) -> None: ...


class Instance(Process):
    """One process with the whole of Legato. `number` says how many have run in its place."""

    def __init__(self, world: Surroundings, place: str, number: int) -> None:
        super().__init__()
        self.name = f"{place}{number}"
        world.ever.append(self)
        self.dead = False
        self.thawed_at = -2 * TIMEOUT
        self.pipes: set[Pipe] = set()
        self._world = world
        self._skew = world.random.randint(-SKEW_MS, SKEW_MS)
        self._nonces = count(1)
        self.network = Network(world.store, world.waiters, world.weather)
        self.network.sent = lambda key, kind, segment: world.watch.sending(self.name, kind, segment)
        self.network.answered = lambda key, kind, segment: world.watch.answered(self.name, kind, segment)
        runtime = Runtime(self.network, world.settings, self.clock, self._nonce, self.name, vault=VAULT)
        self.engine = Engine(runtime, AGENTS, default="loop")
        self.gateway = Gateway(runtime, self.engine, Developers(self.clock))
        self.sweeper = Sweeper(runtime, self.engine)

    @property
    def just_thawed(self) -> bool:
        """It may have stood between its last look at the time and what it does now."""
        return self.thawed_at == self._world.loop.time()

    def clock(self) -> int:
        return EPOCH_MS + int(self._world.loop.time() * 1000) + self._skew

    def _nonce(self) -> str:
        return f"{self.name}-{next(self._nonces)}"

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        context = self.context()
        context.run(HOST.set, self)
        task = self._world.loop.create_task(work, context=context)
        task.add_done_callback(_looked_at)
        return task

    async def ask(self, work: Coroutine[Any, Any, Any]) -> Any:
        """A request to this instance. Raises TimeoutError when nothing comes back; its work goes on then."""
        task = self.spawn(work)
        await asyncio.wait({task}, timeout=ANSWERED_SECONDS)
        if not task.done():
            raise TimeoutError(f"{self.name} does not answer")
        return task.result()

    def open(self, stream: Stream) -> Pipe:
        pipe = Pipe()
        self.pipes.add(pipe)
        self.spawn(serve(stream, pipe)).add_done_callback(lambda _: self.pipes.discard(pipe))
        return pipe

    def entered(self, key: str, effect: str, asked: bool) -> None:
        live = self.engine.live.get(KEY)
        own = live is not None and live.holding.live
        self._world.watch.enters(self.name, key, effect, own, asked)
        self._world.strike_tool(self)

    def done(self, key: str, effect: str) -> None:
        self._world.watch.did(self.name, key, effect, self.just_thawed)

    def found(self, key: str) -> bool:
        return self._world.watch.reconciled(self.name, key)

    def torn(self, key: str) -> None:
        """Its timeout runs from before it stood, if it did."""
        if self._world.loop.time() > self.thawed_at + TIMEOUT + 1:
            self._world.watch.torn(self.name, key)

    def given(self, key: str, value: str) -> None:
        self._world.watch.given(self.name, key, value)

    def asked(self, request: ModelRequest) -> None:
        self._world.watch.holds(answered_once(request), "a model is told each result once", self.name, request)


def _looked_at(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
