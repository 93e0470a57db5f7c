"""Bad input is refused as a whole, in words, through either face; the instance goes on."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from harness import Caller
from http_raw import JSON, refused, send, send_raw, send_then_read

INPUT = b'{"input":"/say 1"}'
BAD_IDS = ["-a", "a%20b", "a%00", "a%0d", "a:%20b", "%C3%A9", "a" * 65, "..%2e", "%E2%80%A8", "%ff"]


@pytest.mark.parametrize("value", BAD_IDS)
@pytest.mark.parametrize("method_path", ["GET /v1/sessions/{}", "GET /v1/sessions/{}/events", "DELETE /v1/sessions/{}"])
async def test_a_session_id_out_of_pattern_is_refused(ann: Caller, value: str, method_path: str) -> None:
    method, path = method_path.format(value).split()
    refused(await send(ann, method, path), 422, "invalid", "session")


@pytest.mark.parametrize("value", ["a%0d%0aX-Injected:%20y", "a%0aid:%209-9", "a%0a"])
@pytest.mark.parametrize("path", ["/v1/sessions/{}", "/v1/sessions/{}/events", "/v1/sessions/s/events?turn={}"])
async def test_an_id_that_would_inject_a_line_injects_nothing(ann: Caller, value: str, path: str) -> None:
    answer = await send(ann, "GET", path.format(value))
    assert answer.status_code in (404, 422)  # a line break in the path stops at the framework's own router
    assert "x-injected" not in answer.headers
    assert "9-9" not in answer.text


@pytest.mark.parametrize("value", BAD_IDS)
async def test_a_turn_id_out_of_pattern_is_refused_wherever_it_stands(ann: Caller, session: str, value: str) -> None:
    refused(await send(ann, "POST", f"/v1/sessions/{session}/turns/{value}/cancel"), 422, "invalid", "turn")
    refused(await send(ann, "GET", f"/v1/sessions/{session}/events?turn={value}"), 422, "invalid", "query.turn")


@pytest.mark.parametrize("path", ["a/b", "a%2Fb", "", "a/"])
async def test_an_id_with_a_slash_or_none_is_another_path(ann: Caller, path: str) -> None:
    refused(await send(ann, "GET", f"/v1/sessions/{path}/x"), 404, "unknown_path")


@pytest.mark.parametrize(
    ("content", "path"),
    [
        (b"", "body"),
        (b"{", "body"),
        (b"null", "body"),
        (b'"text"', "body"),
        (b"\xff\xfe{\x00}\x00", "body"),
        (b'{"input":"\xc3"}', "body"),
        (b'{"input":"\\ud83d"}', "body"),
        (b'{"input":NaN}', "body"),
        (b'{"input":1e400}', "body"),
        (b'{"input":1,"input":1}', "body"),
        (b'{"input":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "body"),
        (b'{"input":' + b'{"a":' * 100 + b"1" + b"}" * 101, "body"),
        (b'{"turn":"t1"}', "input"),
        (b'{"input":1,"turn":"a\\u0000"}', "turn"),
        (b'{"input":1,"turn":"a\\r\\nid: 9-9"}', "turn"),
        (b'{"input":1,"turn":["t1"]}', "turn"),
        (b'{"input":1,"agent":""}', "agent"),
        (b'{"input":1,"agent":"nobody"}', "agent"),
        (b'{"input":1,"if_active":true}', "if_active"),
        (b'{"input":1,"retry_of":"a b"}', "retry_of"),
        (b'{"input":1,"model":"x"}', "model"),
    ],
)
async def test_a_body_that_is_not_whole_is_refused_and_starts_nothing(
    ann: Caller, session: str, content: bytes, path: str
) -> None:
    refused(await send(ann, "POST", f"/v1/sessions/{session}/turns", content), 422, "invalid", path)
    assert (await ann.snapshot(session)).status_code == 404


@pytest.mark.parametrize("content", [b'{"reason":1}', b'{"reason":""}', b'{"why":"x"}', b"[]", b"{"])
async def test_a_cancel_that_is_not_whole_is_refused(ann: Caller, session: str, content: bytes) -> None:
    refused(
        await send(ann, "POST", f"/v1/sessions/{session}/turns/t1/cancel", content),
        422,
        "invalid",
        {b'{"reason":1}': "reason", b'{"reason":""}': "reason", b'{"why":"x"}': "why"}.get(content, "body"),
    )


@pytest.mark.parametrize("header", ["a b", "-a", "a" * 65, '"quoted"', "a, b"])
async def test_an_idempotency_key_out_of_pattern_is_refused(ann: Caller, session: str, header: str) -> None:
    answer = await send(ann, "POST", f"/v1/sessions/{session}/turns", INPUT, {**JSON, "Idempotency-Key": header})
    refused(answer, 422, "invalid", "header.Idempotency-Key")


async def test_two_names_for_one_turn_are_refused(ann: Caller, session: str) -> None:
    content = b'{"input":1,"turn":"t1"}'
    answer = await send(ann, "POST", f"/v1/sessions/{session}/turns", content, {**JSON, "Idempotency-Key": "t2"})
    refused(answer, 422, "invalid", "turn")


async def test_a_body_above_a_mebibyte_is_refused_before_it_is_read(ann: Caller, session: str) -> None:
    content = b'{"input":"' + b"x" * 2_000_000 + b'"}'
    refused(await send(ann, "POST", f"/v1/sessions/{session}/turns", content), 413, "too_large")


async def test_a_chunked_body_above_a_mebibyte_is_refused_too(ann: Caller, session: str) -> None:
    parts = itertools.repeat(b"x" * 65_536, 40)
    refused(await send(ann, "POST", f"/v1/sessions/{session}/turns", parts), 413, "too_large")


@pytest.mark.parametrize("chunked", [True, False])
async def test_a_refusal_is_not_lost_to_who_sends_all_and_then_reads(ann: Caller, session: str, chunked: bool) -> None:
    """A server that closes on unread bytes resets the connection, and the reset takes the answer with it."""
    answer = await asyncio.to_thread(send_then_read, ann, f"/v1/sessions/{session}/turns", 3_000_000, chunked)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"too_large"' in answer


async def test_a_body_whose_chunks_are_none_is_the_clients_mistake(ann: Caller, session: str) -> None:
    """And is no accident in the log, which a test of all requests looks through."""
    fields = ["Host: h", "Authorization: Bearer dev:ann", "Content-Type: application/json", "Connection: close"]
    head = [f"POST /v1/sessions/{session}/turns HTTP/1.1", *fields, "Transfer-Encoding: chunked", "", ""]
    answer = await asyncio.to_thread(send_raw, ann, "\r\n".join(head).encode() + b"ZZ\r\n{}\r\n0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 4")
    assert (await ann.snapshot(session)).status_code == 404


async def test_a_chunked_body_in_bounds_is_taken(ann: Caller, session: str) -> None:
    parts = [INPUT[:5], INPUT[5:]]
    answer = await send(ann, "POST", f"/v1/sessions/{session}/turns", parts, {**JSON, "Accept": "application/json"})
    assert answer.status_code == 202


async def test_an_input_above_its_limit_is_refused(ann: Caller, session: str) -> None:
    refused(await ann.begin(session, "x" * 300_000), 413, "input_too_large")
    assert (await ann.snapshot(session)).status_code == 404


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-16", "multipart/form-data"],
)
async def test_a_media_type_that_is_not_json_is_unsupported(ann: Caller, session: str, kind: str) -> None:
    answer = await send(ann, "POST", f"/v1/sessions/{session}/turns", INPUT, {"Content-Type": kind})
    refused(answer, 415, "unsupported_media_type")


async def test_a_compressed_body_is_unsupported(ann: Caller, session: str) -> None:
    headers = {**JSON, "Content-Encoding": "gzip"}
    answer = await send(ann, "POST", f"/v1/sessions/{session}/turns", INPUT, headers)
    refused(answer, 415, "unsupported_media_type")


@pytest.mark.parametrize("accept", ["text/html", "text/event-stream;q=0, application/json;q=0"])
async def test_what_cannot_be_answered_in_a_wanted_type_is_not_started(ann: Caller, session: str, accept: str) -> None:
    answer = await send(ann, "POST", f"/v1/sessions/{session}/turns", INPUT, {**JSON, "Accept": accept})
    refused(answer, 406, "not_acceptable")
    assert (await ann.snapshot(session)).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/sessions/s/turns", "POST"),
        ("PUT", "/v1/sessions/s/turns", "POST"),
        ("POST", "/v1/sessions/s/events", "GET"),
        ("HEAD", "/v1/sessions/s/events", "GET"),
        ("PATCH", "/v1/sessions/s", "GET, DELETE"),
        ("OPTIONS", "/v1/sessions/s", "GET, DELETE"),
        ("DELETE", "/v1/sessions", "GET"),
        ("GET", "/v1/sessions/s/turns/t/cancel", "POST"),
        ("POST", "/health", "GET"),
    ],
)
async def test_a_method_that_is_not_served_is_told_which_are(ann: Caller, method: str, path: str, allow: str) -> None:
    answer = await send(ann, method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allow)
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("wait=-1", "query.wait"),
        ("wait=abc", "query.wait"),
        ("wait=1e3", "query.wait"),
        ("wait=61", "query.wait"),
        ("from=other", "query.from"),
        ("from=start&after=1-1", "query.from"),
        ("turn=", "query.turn"),
        ("since=1", "query.since"),
        ("after=1-1&after=1-1", "query.after"),
    ],
)
async def test_a_query_that_cannot_be_meant_is_refused(ann: Caller, session: str, query: str, path: str) -> None:
    answer = await send(ann, "GET", f"/v1/sessions/{session}/events?{query}", headers={"Accept": "application/json"})
    refused(answer, 422, "invalid", path)


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "before=5", "before=5-", "page=2"])
async def test_a_page_that_cannot_be_meant_is_refused(ann: Caller, query: str) -> None:
    refused(await send(ann, "GET", f"/v1/sessions?{query}"), 422, "invalid", f"query.{query.partition('=')[0]}")


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/session", "/v2/sessions", "/v1/sessions/s/turns/t/questions/r"])
async def test_a_path_that_is_not_served_is_not_found(ann: Caller, path: str) -> None:
    refused(await send(ann, "GET", path), 404, "unknown_path")


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer secret-1", "Basic ZGV2OmFubg==", "Bearer dev:a b"])
@pytest.mark.parametrize(
    "method_path",
    ["GET /v1/sessions", "GET /v1/sessions/s/events", "POST /v1/sessions/s/turns", "DELETE /v1/sessions/s"],
)
async def test_a_stranger_is_turned_away(ann: Caller, header: str, method_path: str) -> None:
    method, path = method_path.split()
    answer = await send(ann, method, path, headers={"Authorization": header})
    refused(answer, 401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"
