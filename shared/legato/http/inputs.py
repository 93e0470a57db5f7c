"""Reads what a client sent. Nothing is half accepted: each function gives a whole value or raises `Invalid`."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from legato.errors import Invalid, TooLarge
from legato.events import ID_PATTERN
from legato.http.message import Request
from legato.http.problems import Unserved

NESTING: Final = 64
_PARSER_NESTING: Final = 201  # where pydantic's own JSON parser stops; events and snapshots wrap what came in
Model = TypeVar("Model", bound=BaseModel)


def identifier(value: str, path: str) -> str:
    if not re.fullmatch(ID_PATTERN, value):
        raise Invalid(path, "expected an id: 1 to 64 letters, digits, '_' or '-', the first a letter or a digit")
    return value


def query(text: str, allowed: frozenset[str]) -> dict[str, str]:
    """The query's fields. Raises Invalid for one that is not in `allowed` or is given twice."""
    fields: dict[str, str] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        if name not in allowed:
            raise Invalid(f"query.{name}", f"this request takes {', '.join(sorted(allowed)) or 'no query'}")
        if name in fields:
            raise Invalid(f"query.{name}", "given twice")
        fields[name] = value
    return fields


def number(fields: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    """A whole number of the query between both bounds; None when it is not given."""
    text = fields.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,16}", text, re.ASCII) or not least <= int(text) <= most:
        raise Invalid(f"query.{name}", f"expected a whole number from {least} to {most}")
    return int(text)


def seconds(fields: Mapping[str, str], name: str, most: float) -> float | None:
    text = fields.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,5}(\.[0-9]{1,6})?", text, re.ASCII) or float(text) > most:
        raise Invalid(f"query.{name}", f"expected seconds from 0 to {most:g}")
    return float(text)


def accepted(accept: str, offers: Sequence[str]) -> str:
    """The media type to answer with: the most wanted of `offers`, the first of them where the client has no wish.

    Source: RFC 9110, 12.5.1. Raises Unserved (406) when none will do.
    """
    if not accept.strip():
        return offers[0]
    ranges = [_range(part) for part in accept.split(",") if part.strip()]
    wanted = max(offers, key=lambda offer: _quality(ranges, offer))
    if _quality(ranges, wanted) <= 0:
        raise Unserved(406, "not_acceptable", f"this request is answered with {' or '.join(offers)}")
    return wanted


def _range(part: str) -> tuple[str, float]:
    kind, *parameters = (piece.strip() for piece in part.lower().split(";"))
    weights = [text[2:].strip() for text in parameters if text.startswith("q=")]
    valid = not weights or re.fullmatch(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?", weights[0])
    if not valid or not re.fullmatch(r"[^\s/]+/[^\s/]+", kind):
        raise Invalid("header.Accept", f"expected media types such as text/event-stream;q=0.5, got {part.strip()!r}")
    return kind, float(weights[0]) if weights else 1.0


def _quality(ranges: Sequence[tuple[str, float]], offer: str) -> float:
    """The weight of the most specific range that covers `offer`."""
    for pattern in (offer, f"{offer.partition('/')[0]}/*", "*/*"):
        for kind, weight in ranges:
            if kind == pattern:
                return weight
    return 0.0


def no_body(request: Request) -> None:
    if request.bodied or request.body:
        raise Invalid("body", "this request takes no body")


def document(request: Request, limit: int, model: type[Model], *, optional: bool = False) -> Model:
    """The body as `model`. Raises TooLarge, Unserved (415), or Invalid with the field's path."""
    if request.declared > limit or len(request.body) > limit:
        raise TooLarge(f"the body is larger than {limit} bytes")
    if not request.body and optional:
        return model()
    _require_json(request.headers)
    try:
        return model.model_validate(_parse(request.body))
    except ValidationError as wrong:
        first = wrong.errors(include_url=False, include_input=False, include_context=False)[0]
        raise Invalid(".".join(str(part) for part in first["loc"]) or "body", first["msg"]) from None


def _require_json(headers: Mapping[str, str]) -> None:
    kind, _, parameters = headers.get("content-type", "").lower().partition(";")
    charset = parameters.replace(" ", "").replace('"', "")
    if kind.strip() != "application/json" or charset not in ("", "charset=utf-8"):
        raise Unserved(415, "unsupported_media_type", "the body has to be application/json in UTF-8")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise Unserved(415, "unsupported_media_type", "the body has to come without a Content-Encoding")


def _parse(body: bytes) -> Any:
    """JSON that every store and reader can carry: RFC 8259 without repeated names, nesting or halves of a character."""
    try:
        value = json.loads(
            body.decode("utf-8"), object_pairs_hook=_object, parse_constant=_constant, parse_float=_finite
        )
    except UnicodeDecodeError as wrong:
        raise Invalid("body", f"not UTF-8 at byte {wrong.start}") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError as wrong:
        raise Invalid("body", f"not valid JSON: {wrong}") from None
    _carry(body)
    return value


def _carry(body: bytes) -> None:
    around = _PARSER_NESTING - NESTING
    try:
        from_json(b"[" * around + body + b"]" * around)
    except ValueError as wrong:
        if "recursion" in str(wrong):
            raise _too_deep() from None
        raise Invalid("body", "not valid JSON: a string holds half of a surrogate pair") from None


def _too_deep() -> Invalid:
    return Invalid("body", f"nested deeper than {NESTING} levels")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise Invalid("body", f"the field {twice[:80]!r} is given twice in one object")
    return fields


def _constant(name: str) -> float:
    raise Invalid("body", f"{name} is no number in JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise Invalid("body", f"{text[:80]} is too large for a number")
    return value
