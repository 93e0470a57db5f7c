"""What is common to signed tokens (RFC 7519), before anybody is believed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import google.auth.jwt

from legato.errors import Unauthorized

SKEW: Final = 10
"""Seconds by which the clock of whoever made a token may differ from ours."""
_LONGEST: Final = 8192
_SHAPE: Final = re.compile(r"[\w-]+\.[\w-]+\.[\w-]*", re.ASCII)


def header(token: str, kind: str) -> Mapping[str, Any]:
    """The token's own, and not to be believed. Raises Unauthorized where the text is no token; `kind` was expected."""
    if len(token) > _LONGEST or not _SHAPE.fullmatch(token):
        raise Unauthorized(f"expected {kind}")
    try:
        found: Mapping[str, Any] = google.auth.jwt.decode_header(token)
    except Exception:  # a stranger wrote it: whatever the parser makes of it, it is no token
        raise Unauthorized(f"expected {kind}") from None
    return found


def key_id(token: str, kind: str) -> str:
    """The id of the key that the token says to be signed with, by RS256. Raises Unauthorized."""
    claimed = header(token, kind)
    name = claimed.get("kid")
    if claimed.get("alg") != "RS256" or claimed.get("typ", "JWT") != "JWT" or not isinstance(name, str):
        raise Unauthorized(f"expected {kind}, signed by RS256")
    return name
