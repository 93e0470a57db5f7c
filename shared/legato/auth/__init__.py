"""The port through which callers become principals. A token is read behind it and nowhere else, and never logged."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from legato.errors import Unauthorized
from legato.events import ID_PATTERN
from legato.principal import Principal

_EXPECTED: Final = (
    "expected the token dev:NAME, or dev:NAME:MS until MS (ms since 1970); "
    "NAME is 1 to 64 letters, digits, '_' or '-', the first a letter or a digit"
)


class Verifier(Protocol):
    """Tells who calls, by a request's headers (their names in lower case)."""

    async def verify(self, headers: Mapping[str, str]) -> Principal:
        """Raises Unauthorized with what a caller has to do, and never with anything of a token. Raises KeysUnavailable
        when that cannot be told now."""

    async def stands(self, principal: Principal) -> bool:
        """False once a caller that was let in may read no more, whatever its token says: it was deleted, or its tokens
        were revoked. Whatever is raised says that this is not known."""


def bearer(headers: Mapping[str, str]) -> str:
    """The token of the header `Authorization`. Raises Unauthorized."""
    found = re.fullmatch(r"bearer +([^ ]+) *", headers.get("authorization", ""), re.IGNORECASE)
    if not found:
        raise Unauthorized("send the header 'Authorization: Bearer TOKEN'")
    return found[1]


class Developers:
    """For the laptop: takes `dev:NAME` at its word, and `dev:NAME:MS` until that time (ms since 1970)."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock

    async def verify(self, headers: Mapping[str, str]) -> Principal:
        found = re.fullmatch(rf"dev:({ID_PATTERN})(?::([0-9]{{1,15}}))?", bearer(headers), re.ASCII)
        if not found:
            raise Unauthorized(_EXPECTED)
        expires_at = int(found[2]) if found[2] else None
        if expires_at is not None and expires_at <= self._clock():
            raise Unauthorized("the token has expired; send a fresh one")
        return Principal(found[1], expires_at)

    async def stands(self, principal: Principal) -> bool:
        return True
