"""What the OpenAPI document says of an answer."""

from __future__ import annotations

import json
import re
from typing import Any

from legato.http.api import ROUTES
from legato.http.openapi import document

DOCUMENT = document(ROUTES)


def undocumented(method: str, path: str, status: int, kind: str, body: bytes | None = None) -> str | None:
    """What an answer is that the document does not know of; None of one that it does, or of a path that nobody serves.

    `kind` is its media type, "" where it has none. A problem's `body` is looked into, where there is one.
    """
    found = [said for template, said in DOCUMENT["paths"].items() if re.fullmatch(_pattern(template), path)]
    operation = found[0].get(method.lower()) if found else None
    if operation is None:
        return None
    media = kind.partition(";")[0]
    answer = operation["responses"].get(str(status))
    if answer is None or media not in answer.get("content", {"": None}):
        return f"{method} {path} is answered with {status} {media}"
    if media == "application/problem+json" and body:
        code = json.loads(body)["code"]
        if code not in _codes(answer):
            return f"{method} {path} is answered with {status} {code}"
    return None


def _pattern(template: str) -> str:
    return re.sub(r"{\w+}", "[^/]+", template)


def _codes(answer: dict[str, Any]) -> list[str]:
    codes: list[str] = answer["content"]["application/problem+json"]["schema"]["allOf"][1]["properties"]["code"]["enum"]
    return codes
