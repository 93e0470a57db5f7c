"""What is sent to do harm is refused or cut, through either face, and everybody else is answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from harness import Caller, Face, Server
from http_raw import JSON, refused, send, send_raw

HEAD = "Host: h\r\nAuthorization: Bearer dev:ann\r\nContent-Type: application/json\r\n"
START = b'{"input":"/say 1"}'
LISTED = "https://app.example.com"


def raw(method: str, path: str, fields: str = "", body: bytes = b"") -> bytes:
    return f"{method} {path} HTTP/1.1\r\n{HEAD}{fields}\r\n".encode("latin-1") + body


def closing(method: str, path: str, fields: str = "", body: bytes = b"") -> bytes:
    return raw(method, path, f"{fields}Connection: close\r\n", body)


def status(answer: bytes) -> int:
    """0 where the connection was closed without one."""
    return int(answer.split(b" ", 2)[1]) if answer else 0


@pytest.mark.parametrize("name", ["Idempotency-Key: t1", "Last-Event-ID: 1-1", f"Origin: {LISTED}"])
@pytest.mark.parametrize("end", ["\r\n X-Injected: y", "\nX-Injected: y", "\rX-Injected: y", "\0", "\x85\xa0\xe9"])
async def test_a_header_that_would_inject_a_line_injects_nothing(
    ann: Caller, session: str, name: str, end: str
) -> None:
    fields = f"{name}{end}\r\nContent-Length: {len(START)}\r\n"
    answer = send_raw(ann, closing("POST", f"/v1/sessions/{session}/turns", fields, START))
    assert b"x-injected" not in answer.lower()
    assert status(answer) in {0, 200, 400, 422}


@pytest.mark.parametrize(
    "fields",
    [
        "Content-Length: {}\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: {}\r\n",
        "Content-Length: {}\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\nContent-Length: {}\r\n",
        "Transfer-Encoding: xchunked\r\nContent-Length: {}\r\n",
        "Transfer-Encoding : chunked\r\nContent-Length: {}\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: 0x5\r\n",
    ],
)
async def test_a_request_whose_end_can_be_read_in_two_ways_is_answered_once_at_most(
    ann: Caller, session: str, fields: str
) -> None:
    """What would be a request behind the shorter reading is not taken for one."""
    body = b"0\r\n\r\n" + closing("DELETE", f"/v1/sessions/{session}")
    await ann.begin(session, "/say 1", "t1")
    send_raw(ann, raw("POST", f"/v1/sessions/{session}/turns", fields.format(len(body)), body))
    assert (await ann.snapshot(session)).status_code == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Proto": "https"},
        {"X-Forwarded-Host": "evil.net"},
        {"X-Forwarded-Prefix": "/v1/sessions"},
        {"X-Original-URL": "/health"},
        {"X-HTTP-Method-Override": "DELETE"},
        {"Host": "evil.net"},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_nothing_that_a_hop_might_say_changes_who_is_asked_for_what(
    ann: Caller, session: str, fields: dict[str, str]
) -> None:
    answer = await send(ann, "GET", f"/v1/sessions/{session}", headers=fields)
    refused(answer, 404, "not_found")
    assert "evil" not in f"{answer.headers}{answer.text}"
    refused(await send(ann, "GET", "/v1/sessions", headers={**fields, "Authorization": ""}), 401, "unauthorized")


@pytest.mark.parametrize("path", ["/" + "a" * 60_000, "/events?after=" + "9" * 60_000, "/events?" + "a=1&" * 15_000])
async def test_a_very_long_address_is_refused_in_a_few_words(ann: Caller, path: str) -> None:
    answer = send_raw(ann, closing("GET", f"/v1/sessions/s{path}"))
    assert status(answer) in {400, 404, 414, 422}
    assert len(answer) < 2000


@pytest.mark.parametrize("size", [1024 * 1024 - 100, 1024 * 1024])
async def test_a_prompt_of_a_mebibyte_is_refused_and_begins_nothing(ann: Caller, session: str, size: int) -> None:
    answer = await send(ann, "POST", f"/v1/sessions/{session}/turns", b'{"input":"%s"}' % (b"x" * size))
    assert (answer.status_code, answer.json()["code"]) in {(413, "too_large"), (413, "input_too_large")}
    assert (await ann.snapshot(session)).status_code == 404


BOMBS = {
    "arrays": b"[" * 500_000,
    "objects": b'{"a":' * 100_000,
    "digits": b'{"input":' + b"9" * 900_000 + b"}",
    "a large number": b'{"input":1e999}',
    "a deep repetition": b'{"input":' + b'{"a":' * 60 + b'{"a":1,"a":2}' + b"}" * 61,
    "surrogates": b'{"input":"' + b"\\ud800" * 100_000 + b'"}',
    "fields": b'{"input":1,' + b",".join(b'"k%d":1' % n for n in range(80_000)) + b"}",
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
async def test_a_bomb_of_json_is_refused_in_a_few_words_and_begins_nothing(
    ann: Caller, session: str, bomb: bytes
) -> None:
    began = time.monotonic()
    answer = await send(ann, "POST", f"/v1/sessions/{session}/turns", bomb, JSON)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert len(answer.content) < 1000
    assert time.monotonic() - began < 5
    assert (await ann.snapshot(session)).status_code == 404


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "https://app.example.com.evil.net",
        "https://evilapp.example.com",
        "https://app.example.com:444",
        "https://shop--x.evil.web.app",
        "https://shop--.web.app.evil.net",
        "https://shop--x%2e.web.app",
        "https://user@app.example.com",
        "https://app.example.com/",
        "HTTPS://APP.EXAMPLE.COM",
    ],
)
async def test_no_trick_of_an_origin_is_granted(ann: Caller, origin: str) -> None:
    asks = {"Origin": origin, "Access-Control-Request-Method": "GET"}
    for method in ("OPTIONS", "GET"):
        answer = await send(ann, method, "/v1/sessions", headers=asks)
        assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_no_origin_is_granted_cookies(ann: Caller) -> None:
    """Who calls is said in a header that a page has to write itself."""
    asks = {"Origin": LISTED, "Access-Control-Request-Method": "GET"}
    for method in ("OPTIONS", "GET"):
        answer = await send(ann, method, "/v1/sessions", headers=asks)
        assert answer.headers["access-control-allow-origin"] == LISTED
        assert "access-control-allow-credentials" not in answer.headers


@pytest.fixture
async def narrow(face: Face, tmp_path: Path) -> AsyncIterator[Server]:
    """Of four threads, where a face has threads."""
    async with Server(f"sqlite:///{tmp_path}/journal.sqlite", tmp_path / "log", face, {"THREADS": "4"}) as server:
        yield server


HELD_BACK = (
    b"GET /v1/sess",
    b"GET /v1/sessions HTTP/1.1\r\nHost: h\r\nX-A: ",
    raw("POST", "/v1/sessions/s/turns", f"Content-Length: {len(START)}\r\n", START[:-1]),
    raw("POST", "/v1/sessions/s/turns", "Transfer-Encoding: chunked\r\n", b"20\r\n{"),
)


@asynccontextmanager
async def held_back(server: Server, sent: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """A connection on which so much has been sent, and no more is."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(sent)
    yield reader
    writer.close()


async def test_who_holds_back_what_it_has_to_say_holds_up_others_for_a_bounded_time(narrow: Server) -> None:
    """Four that hold all four threads, where there are threads: a head has 10 s, a body 20 s."""
    began = time.monotonic()
    async with AsyncExitStack() as stack, asyncio.timeout(40):
        readers = [await stack.enter_async_context(held_back(narrow, sent)) for sent in HELD_BACK]
        assert (await send(narrow.caller(), "GET", "/health")).status_code == 200
        assert time.monotonic() - began < 18
        for body in readers[2:]:
            assert (await body.readline()).startswith(b"HTTP/1.1 422")
        assert time.monotonic() - began < 30
    assert (await narrow.caller().snapshot("s")).status_code == 404
