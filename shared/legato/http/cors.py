"""Cross-origin requests: listed origins only. Pure; the Fetch standard's section "HTTP extensions" is the source."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from re import Pattern
from typing import Final

from legato.http.message import Answer, Request
from legato.settings import origin_pattern

_ALLOWED: Final = {
    "Access-Control-Allow-Methods": "GET, POST, DELETE",
    "Access-Control-Allow-Headers": (
        "Authorization, Content-Type, Idempotency-Key, If-None-Match, Last-Event-ID, X-Firebase-AppCheck"
    ),
    "Access-Control-Max-Age": "7200",
}
_EXPOSED: Final = "ETag, Legato-Instance, Legato-Session, Legato-Stream, Legato-Turn, Retry-After"


def headers(origins: str, request: Request) -> Mapping[str, str]:
    """What every answer carries, errors and streams too. `origins` are patterns separated by spaces."""
    origin = request.headers.get("origin", "")
    if not _listed(origins, origin):
        return {"Vary": "Origin"}
    return {"Vary": "Origin", "Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": _EXPOSED}


def preflight(origins: str, request: Request) -> Answer | None:
    """The answer to a browser that asks before it sends; None when the request is no such question."""
    asks = request.method == "OPTIONS" and "access-control-request-method" in request.headers
    if not asks or "origin" not in request.headers:
        return None
    return Answer(204, _ALLOWED if _listed(origins, request.headers["origin"]) else {})


def _listed(origins: str, origin: str) -> bool:
    return any(pattern.fullmatch(origin) for pattern in _patterns(origins))


@lru_cache(maxsize=8)
def _patterns(origins: str) -> tuple[Pattern[str], ...]:
    return tuple(origin_pattern(origin) for origin in origins.split())
