"""Those who sign tokens, and a Google that publishes the keys of the first one."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from functools import cache

import httpx
import pytest

from harness.google import Google
from harness.signer import Signer


@cache
def signer_named(name: str) -> Signer:
    return Signer(name)


@pytest.fixture
def signer() -> Signer:
    """Whose key is published."""
    return signer_named("key-1")


@pytest.fixture
def successor() -> Signer:
    """Whose key is not, yet."""
    return signer_named("key-2")


@pytest.fixture
async def google(signer: Signer) -> AsyncIterator[Google]:
    async with Google(signer) as running:
        yield running


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False, limits=httpx.Limits(max_keepalive_connections=0)) as client:
        yield client


class Clock:
    """The machine's, and `ahead` of it. In ms."""

    def __init__(self) -> None:
        self.ahead = 0

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead


@pytest.fixture
def clock() -> Clock:
    return Clock()
