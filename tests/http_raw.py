"""Requests that no well-behaved client would send, and what every refusal must look like."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import httpx

from harness import Caller

JSON = {"Content-Type": "application/json"}


async def send(
    caller: Caller, method: str, path: str, content: bytes | Iterable[bytes] = b"", headers: Mapping[str, str] = JSON
) -> httpx.Response:
    """`path` goes out as it is; a body that is no bytes goes out in chunks, without a length."""
    body = content if isinstance(content, bytes) else _chunks(content)
    sent = {"Authorization": "Bearer dev:ann", **headers}
    async with httpx.AsyncClient(trust_env=False, verify=False, timeout=30) as http:
        return await http.request(method, f"{caller.url}{path}", content=body, headers=sent)


async def _chunks(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def refused(answer: httpx.Response, status: int, code: str, path: str | None = None) -> dict[str, Any]:
    """Asserts that `answer` is that problem, whole and well-formed; gives its fields."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    problem: dict[str, Any] = json.loads(answer.content)
    assert (answer.status_code, problem["code"], problem.get("path")) == (status, code, path), problem
    assert problem["status"] == status
    assert {"type", "title", "detail"} <= problem.keys()
    assert answer.headers["legato-instance"]
    return problem
