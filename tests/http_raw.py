"""Requests that no well-behaved client would send, and what every refusal must look like."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import httpx

from harness import Caller
from harness.caller import is_documented

JSON = {"Content-Type": "application/json"}


async def send(
    caller: Caller, method: str, path: str, content: bytes | Iterable[bytes] = b"", headers: Mapping[str, str] = JSON
) -> httpx.Response:
    """`path` goes out as it is; a body that is no bytes goes out in chunks, without a length."""
    body = content if isinstance(content, bytes) else _chunks(content)
    sent = {"Authorization": "Bearer dev:ann", **headers}
    async with httpx.AsyncClient(trust_env=False, verify=False, timeout=30) as http:
        answer = await http.request(method, f"{caller.url}{path}", content=body, headers=sent)
    is_documented(answer)
    return answer


async def _chunks(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def send_then_read(caller: Caller, path: str, size: int, chunked: bool) -> bytes:
    """What a client reads once it has sent all `size` bytes of its body, the last of them when a server that closes on
    them has had the time to. Raises OSError when it is reset."""
    url = httpx.URL(caller.url)
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (size, b"x" * size) if chunked else b"x" * size
    fields = ["Host: h", "Authorization: Bearer dev:ann", "Content-Type: application/json", "Connection: close", length]
    with socket.create_connection((url.host, url.port or 80), timeout=10) as connection:
        connection.sendall("\r\n".join([f"POST {path} HTTP/1.1", *fields, "", ""]).encode() + body[:-500_000])
        closed = select.poll()
        closed.register(connection, select.POLLRDHUP)
        if closed.poll(500):
            closed.modify(connection, 0)  # only the reset is left to come
            closed.poll(500)
        connection.sendall(body[-500_000:])
        return b"".join(iter(lambda: connection.recv(65536), b""))


def send_raw(caller: Caller, request: bytes) -> bytes:
    """What comes back until the server closes."""
    url = httpx.URL(caller.url)
    with socket.create_connection((url.host, url.port or 80), timeout=10) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def refused(answer: httpx.Response, status: int, code: str, path: str | None = None) -> dict[str, Any]:
    """Asserts that `answer` is that problem, whole and well-formed; gives its fields."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    problem: dict[str, Any] = json.loads(answer.content)
    assert (answer.status_code, problem["code"], problem.get("path")) == (status, code, path), problem
    assert problem["status"] == status
    assert {"type", "title", "detail"} <= problem.keys()
    assert answer.headers["legato-instance"]
    return problem
