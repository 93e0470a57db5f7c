"""The only place that names concrete parts: builds the gateway from the settings."""

from __future__ import annotations

import gc
import importlib
import inspect
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import cast
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import httpx

from legato.agents import AgentFunction
from legato.agents.adapt import as_agent
from legato.auth import Developers, Verifier
from legato.auth.app_check import app_check
from legato.auth.firebase import emulated, firebase
from legato.credentials import Shared, Source
from legato.engine.run import Engine
from legato.engine.runtime import Runtime
from legato.engine.watchdog import Watchdog
from legato.errors import SettingsError
from legato.gateway import Gateway
from legato.journal import Journal
from legato.journal.firestore import FirestoreJournal
from legato.journal.sqlite import SqliteJournal
from legato.settings import Settings, keys_of
from legato.sweeper import Sweeper
from legato.vault import Vault

DEFAULT_AGENT = "agent"


def now() -> int:
    return time.time_ns() // 1_000_000


def nonce() -> str:
    return uuid4().hex


@dataclass(frozen=True, slots=True)
class App:
    """The parts of one process. Built inside the event loop that will run them, and closed in it."""

    settings: Settings
    verifier: Verifier
    instance: str
    gateway: Gateway
    engine: Engine
    sweeper: Sweeper
    journal: Journal
    watchdog: Watchdog

    async def drain(self) -> None:
        """Lets go of every turn and every stream, `settings.drain` seconds and a little more from now at the latest."""
        await self.gateway.drain()

    async def close(self) -> None:
        self.gateway.close()
        await self.sweeper.close()
        await self.engine.close()
        await self.journal.close()
        self.watchdog.close()


def build(settings: Settings) -> App:
    """Wires one process. Raises SettingsError when what the settings name cannot be imported."""
    instance = f"{socket.gethostname()}-{os.getpid()}-{nonce()[:6]}"
    journal = open_journal(settings)
    runtime = Runtime(
        journal=journal,
        settings=settings,
        clock=now,
        nonce=nonce,
        instance=instance,
        credentials=load_credentials(settings.credentials),
        vault=open_vault(settings),
    )
    agents = load_agents(settings.agent)
    engine = Engine(runtime, agents, default=next(iter(agents)))
    verifier = open_verifier(settings)
    gateway, sweeper = Gateway(runtime, engine, verifier), Sweeper(runtime, engine)
    return App(settings, verifier, instance, gateway, engine, sweeper, journal, Watchdog())


def collect_rarely() -> None:
    """For a process that serves streams: spares its loop the garbage collector's full passes.

    A full pass looks at every object; beside 400 streams it stops the loop for 0.1 s and more. What has been built by
    now is exempt from here on, and passes become rare. Next to nothing here is garbage by cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)


def open_journal(settings: Settings) -> Journal:
    url = urlsplit(settings.journal)
    if url.scheme == "sqlite":
        return SqliteJournal(unquote(url.path[1:]), clock=now)
    return FirestoreJournal(url.netloc, url.path.removeprefix("/"), emulator=settings.emulator or None)


def open_verifier(settings: Settings) -> Verifier:
    """Nothing is kept open between its requests, so that there is nothing to close."""
    http = cache(lambda: httpx.AsyncClient(limits=httpx.Limits(max_keepalive_connections=0)))
    kind, _, project = settings.auth.partition(":")
    if settings.auth == "dev":
        verifier: Verifier = Developers(now)
    elif kind != "firebase":
        verifier = load_verifier(settings.auth)
    elif settings.auth_emulator:
        verifier = emulated(project, http(), now, settings.auth_emulator)
    else:
        verifier = firebase(project, http(), now)
    return verifier if settings.app_check == "off" else app_check(settings.app_check, verifier, http(), now)


def load_verifier(name: str) -> Verifier:
    """`module:attribute` is a verifier, or what gives one when it is called: a class, a function."""
    try:
        found = _imported(name)
        if inspect.isclass(found) or inspect.isfunction(found):
            found = found()
        if missing := [method for method in ("verify", "stands") if not _is_async(found, method)]:
            raise TypeError(f"{type(found).__name__} has no async method {missing[0]}")
    except (ImportError, AttributeError, TypeError) as wrong:
        raise SettingsError(f"LEGATO_AUTH={name!r}: {wrong}") from wrong
    return cast(Verifier, found)


def open_vault(settings: Settings) -> Vault | None:
    """None: there is no key, and what a user gives is not kept."""
    keys = keys_of(settings.credential_keys.get_secret_value())
    return Vault(keys) if keys else None


def load_agents(name: str) -> dict[str, AgentFunction]:
    """`module:attribute` is an agent, or a mapping of names to agents of which the first is the default."""
    try:
        found = _imported(name)
        agents = found if isinstance(found, Mapping) else {DEFAULT_AGENT: found}
        if not agents:
            raise TypeError("the mapping names no agent")
        return {key: as_agent(value) for key, value in agents.items()}
    except (ImportError, AttributeError, TypeError) as wrong:
        raise SettingsError(f"LEGATO_AGENT={name!r}: {wrong}") from wrong


def load_credentials(name: str) -> dict[str, Shared]:
    """`module:attribute` is a mapping of names to sources; where there is no such name, there are none."""
    try:
        sources = _imported(name) if name else {}
        if not isinstance(sources, Mapping):
            raise TypeError(f"expected a mapping of names to sources, got {type(sources).__name__}")
        return {str(key): Shared(str(key), _as_source(key, source), now) for key, source in sources.items()}
    except (ImportError, AttributeError, TypeError) as wrong:
        raise SettingsError(f"LEGATO_CREDENTIALS={name!r}: {wrong}") from wrong


def _as_source(name: object, source: object) -> Source:
    if isinstance(source, type):
        raise TypeError(f"{name!r} is a class, expected one made of it")
    if not _is_async(source, "fetch"):
        raise TypeError(f"{name!r} is {type(source).__name__}, which has no async method fetch")
    return cast(Source, source)


def _is_async(found: object, method: str) -> bool:
    return inspect.iscoroutinefunction(getattr(found, method, None))


def _imported(name: str) -> object:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)
