"""Who calls. A token is read here and nowhere else, and never logged."""

from __future__ import annotations

import re
from dataclasses import dataclass

from legato.errors import Unauthorized
from legato.events import ID_PATTERN


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller: sessions live under `uid`."""

    uid: str


def authenticate(authorization: str | None, scheme: str) -> Principal:
    """The caller that an `Authorization` header names; `scheme` is the setting `auth`. Raises Unauthorized."""
    found = re.fullmatch(r"bearer +([^ ]+) *", authorization or "", re.IGNORECASE)
    if not found:
        raise Unauthorized("send the header 'Authorization: Bearer TOKEN'")
    if scheme != "dev":
        raise Unauthorized("this server takes no tokens of that kind")
    return _developer(found[1])


def _developer(token: str) -> Principal:
    found = re.fullmatch(rf"dev:({ID_PATTERN})", token)
    if not found:
        raise Unauthorized("expected the token dev:NAME, NAME being 1 to 64 letters, digits, '_' or '-'")
    return Principal(found[1])
