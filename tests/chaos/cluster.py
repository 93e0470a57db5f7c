"""Two instances over one journal behind one address, as a platform gives one to a service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from chaos.lives import Life, Lived, Scene
from conftest import Place
from harness import Server, TcpProxy

LEASE = 1.5
AGENT = {"PYTHONPATH": str(Path(__file__).parents[1]), "LEGATO_AGENT": "chaos.witness:agent"}
ENV = {**AGENT, "LEGATO_LEASE": str(LEASE), "LEGATO_PING": "0.5"}


class Cluster:
    """New connections reach the instance that is `serving`; the other one is the `spare`."""

    def __init__(self, serving: Server, spare: Server, hop: TcpProxy, scene: Scene) -> None:
        self.serving, self.spare = serving, spare
        self.hop, self.scene = hop, scene

    def swap(self) -> Server:
        """From now on the spare one serves; gives the one that did. Connections stay where they are."""
        self.serving, self.spare = self.spare, self.serving
        self.hop.upstream = self.serving.port
        return self.spare

    async def calm(self) -> Life:
        """A turn that nothing befalls."""
        return await self.scene.told(await self.scene.live("calm"))

    async def told(self, lives: list[Lived]) -> list[Life]:
        return [await self.scene.told(lived) for lived in lives]


@asynccontextmanager
async def cluster(place: Place, **env: str) -> AsyncIterator[Cluster]:
    """`env` adds to the environment of both instances."""
    witness = place.directory / "witness"
    env = {**ENV, "WITNESS": str(witness), **env}
    servers = place.server("a", **env), place.server("b", **env)
    try:
        await asyncio.gather(*(server.start() for server in servers))
        async with TcpProxy(servers[0].port) as hop:
            yield Cluster(*servers, hop, Scene(hop.url, place.ledger, witness))
    finally:
        for server in servers:
            await server.__aexit__()
