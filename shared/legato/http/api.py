"""Every request that Legato answers, free of any framework: both faces call `handle`."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import cache
from traceback import extract_tb
from typing import Any, Final, Protocol

from legato import sse
from legato.auth import Verifier
from legato.engine.run import StartTurn
from legato.errors import Invalid, LegatoError, Unauthorized, VerifierFailed
from legato.events import Cursor
from legato.foreign import FAILURES, cancelled
from legato.gateway import NONSENSE, Decided, Gateway
from legato.http import cors, inputs, operations
from legato.http.bodies import AuthBody, CancelBody, DecisionBody, StartBody, SupplyBody
from legato.http.message import Answer, Request, json_answer
from legato.http.openapi import JSON, document
from legato.http.problems import RETRY_AFTER, problem
from legato.http.routing import Call, Route, find
from legato.http.seat import Seat
from legato.journal import Place
from legato.principal import Principal, names_a_place
from legato.settings import Settings
from legato.stream import Stream

log = logging.getLogger("legato.http")


class Served(Protocol):
    """What a face serves, as `legato.app` builds it."""

    @property
    def gateway(self) -> Gateway: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def verifier(self) -> Verifier: ...
    @property
    def instance(self) -> str: ...
    async def drain(self) -> None: ...
    async def close(self) -> None: ...


async def handle(served: Served, request: Request, seat: Seat) -> Answer:
    """The answer to `request`; it never raises. The caller closes the body of a stream, read or not.

    A stream and a long poll take the `seat` before they begin, and the caller leaves it.
    """
    origins = served.settings.origins
    answer = cors.preflight(origins, request) or await _answer(served, request, seat)
    return answer.plus({**cors.headers(origins, request), "Legato-Instance": served.instance})


def failed(request: Request, error: Exception) -> Answer:
    """The answer to a request that `error` ended; what nobody foresaw is logged, once."""
    answer = problem(error)
    if answer.status == 500:
        log.error("%s %r failed", request.method, request.path, exc_info=error)
    return answer


async def _answer(served: Served, request: Request, seat: Seat) -> Answer:
    try:
        route, ids = find(ROUTES, request)
        principal = await _caller(served.verifier, request) if route.private else Principal("")
        for name, value in ids.items():
            inputs.identifier(value, name)
        if route.operation.body is None:
            inputs.no_body(request)
        return await route.handler(
            Call(served.gateway, served.settings, request, principal, ids, route.operation, seat)
        )
    except Exception as error:
        return failed(request, error)


async def _caller(verifier: Verifier, request: Request) -> Principal:
    try:
        principal = await verifier.verify(request.headers)
    except FAILURES as wrong:
        if cancelled() or isinstance(wrong, LegatoError):
            raise
        at = extract_tb(wrong.__traceback__)[-1]
        raise VerifierFailed(f"{type(wrong).__name__} in {at.filename}, line {at.lineno}") from None
    if not names_a_place(principal.uid):
        raise Unauthorized("no session can be kept under this user's id")
    return principal


async def _start(call: Call) -> Answer:
    call.query()
    kind = call.accepted()
    body = call.body(StartBody)
    turn = _turn_id(body.turn, call.request.headers.get("idempotency-key"))
    start = StartTurn(turn, body.input, body.agent, body.if_active, body.retry_of)
    if kind == sse.MEDIA_TYPE:
        call.linger()
    started = await call.gateway.start(call.key, start)
    if kind == sse.MEDIA_TYPE:
        return _streamed(call, call.gateway.attach(call.key, started, call.principal))
    fields = {"session": call.key.session, "turn": turn, "status": started.record.status}
    return json_answer(202, fields, {"Legato-Session": call.key.session, "Legato-Turn": turn})


def _turn_id(field: str | None, header: str | None) -> str:
    """The client's name for the turn, from either place; a client that gives none cannot repeat the request safely."""
    if header is not None:
        inputs.identifier(header, "header.Idempotency-Key")
    if field and header and field != header:
        raise Invalid("turn", "differs from the header Idempotency-Key")
    return field or header or f"t_{uuid.uuid4().hex}"


async def _events(call: Call) -> Answer:
    fields = call.query()
    wait = inputs.seconds(fields, "wait", operations.LONGEST_WAIT)
    kind = call.accepted(JSON) if wait is not None else call.accepted()
    cursor, start = _position(fields, call.request.headers.get("last-event-id"))
    turn = inputs.identifier(fields["turn"], "query.turn") if "turn" in fields else None
    if kind == sse.MEDIA_TYPE or wait:
        call.linger()
    if kind == sse.MEDIA_TYPE:
        stream = await call.gateway.follow(call.key, cursor=cursor, start=start, turn=turn, caller=call.principal)
        return _streamed(call, stream)
    news = await call.gateway.poll(
        call.key, cursor=cursor, start=start, turn=turn, wait=wait or 0.0, caller=call.principal
    )
    return Answer(204) if news is None else json_answer(200, news)


def _position(fields: Mapping[str, str], last_event_id: str | None) -> tuple[Cursor | None, bool]:
    """Where to go on. The header wins: a browser that reconnects repeats the query it began with."""
    origin = fields.get("from")
    if origin not in (None, "start"):
        raise Invalid("query.from", "expected 'start'")
    if origin and "after" in fields:
        raise Invalid("query.from", "give either 'from' or 'after'")
    after = last_event_id or fields.get("after")
    if after is None:
        return None, origin is not None
    return Cursor.parse(after) or NONSENSE, False


async def _snapshot(call: Call) -> Answer:
    before = inputs.number(call.query(), "before", 1, operations.NEWEST)
    call.accepted()
    snapshot = await call.gateway.snapshot(call.key, before)
    headers = {"ETag": f'"{snapshot["cursor"]}"', "Cache-Control": "private, no-cache"}
    if _matches(call.request.headers.get("if-none-match", ""), headers["ETag"]):
        return Answer(304, headers)
    return json_answer(200, snapshot, headers)


def _matches(condition: str, etag: str) -> bool:
    """RFC 9110, 13.1.2: the weak comparison with any of the tags in If-None-Match."""
    return condition.strip() == "*" or etag in re.findall(r'"[^"]*"', condition)


async def _sessions(call: Call) -> Answer:
    fields = call.query()
    call.accepted()
    before = _place(fields["before"]) if "before" in fields else None
    limit = inputs.number(fields, "limit", 1, operations.MOST_SESSIONS) or 20
    return json_answer(200, await call.gateway.sessions(call.principal.uid, before, limit))


def _place(text: str) -> Place:
    place = Place.parse(text)
    if place is None:
        raise Invalid("query.before", "expected the 'before' of an earlier page")
    return place


async def _cancel(call: Call) -> Answer:
    call.query()
    call.accepted()
    body = call.body(CancelBody)
    turn = call.ids["turn"]
    ended = await call.gateway.cancel(call.key, turn, body.reason, call.principal.uid)
    return json_answer(200 if ended else 202, {"session": call.key.session, "turn": turn, "ended": ended})


async def _decide(call: Call) -> Answer:
    call.query()
    kind = call.accepted()
    body = call.body(DecisionBody)
    turn, request = call.ids["turn"], call.ids["request"]
    if kind == sse.MEDIA_TYPE:
        call.linger()
    decided = await call.gateway.decide(call.key, turn, request, body.approved, body.note)
    if kind == sse.MEDIA_TYPE:
        return _gone_on(call, decided)
    fields = {"session": call.key.session, "turn": turn, "request": request, "approved": body.approved}
    return json_answer(200 if decided.again else 202, fields)


async def _supply(call: Call) -> Answer:
    call.query()
    kind = call.accepted()
    body = call.body(SupplyBody)
    turn, name = call.ids["turn"], call.ids["name"]
    if kind == sse.MEDIA_TYPE:
        call.linger()
    supplied = await call.gateway.supply(call.key, turn, name, body.value.get_secret_value(), body.expires_in)
    if kind == sse.MEDIA_TYPE:
        return _gone_on(call, supplied)
    return json_answer(200 if supplied.again else 202, {"session": call.key.session, "turn": turn, "name": name})


def _gone_on(call: Call, decided: Decided) -> Answer:
    """The stream of the turn that was answered."""
    last = call.request.headers.get("last-event-id")
    cursor = (Cursor.parse(last) or NONSENSE) if last else None
    return _streamed(call, call.gateway.follow_decided(call.key, decided, cursor, call.principal))


async def _auth(call: Call) -> Answer:
    call.query()
    body = call.body(AuthBody)
    await call.gateway.prolong(call.key, body.stream, call.principal)
    return Answer(204)


async def _delete(call: Call) -> Answer:
    call.query()
    await call.gateway.delete(call.key)
    return Answer(204)


async def _health(call: Call) -> Answer:
    health = call.gateway.health()
    return json_answer(200, health) if health["status"] == "ok" else json_answer(503, health, RETRY_AFTER)


def _streamed(call: Call, stream: Stream | None) -> Answer:
    if stream is None:
        return Answer(204)
    headers = {
        "Content-Type": f"{sse.MEDIA_TYPE}; charset=utf-8",
        "Cache-Control": "no-cache, no-transform",
        "X-Accel-Buffering": "no",
        "Legato-Session": stream.session,
        "Legato-Stream": stream.id,
    }
    turn = {"Legato-Turn": stream.turn} if stream.turn else {}
    return Answer(200, {**headers, **turn}, _whole(stream, call.request))


async def _whole(stream: Stream, request: Request) -> AsyncGenerator[bytes, None]:
    """The stream's frames. An error in mid-stream ends it: the client sees no last frame, and resumes."""
    async with aclosing(stream.frames()) as frames:
        try:
            async for frame in frames:
                yield frame
        except Exception:
            log.exception("the stream of %r broke off", request.path)


async def _openapi(call: Call) -> Answer:
    return json_answer(200, _document())


@cache
def _document() -> Mapping[str, Any]:
    return document(ROUTES)


ROUTES: Final = (
    Route("POST", "/v1/sessions/{session}/turns", _start, operations.START),
    Route("GET", "/v1/sessions/{session}/events", _events, operations.FOLLOW),
    Route("POST", "/v1/sessions/{session}/turns/{turn}/cancel", _cancel, operations.CANCEL),
    Route("POST", "/v1/sessions/{session}/turns/{turn}/approvals/{request}", _decide, operations.DECIDE),
    Route("POST", "/v1/sessions/{session}/turns/{turn}/credentials/{name}", _supply, operations.SUPPLY),
    Route("POST", "/v1/sessions/{session}/auth", _auth, operations.PROLONG),
    Route("GET", "/v1/sessions/{session}", _snapshot, operations.LOOK),
    Route("DELETE", "/v1/sessions/{session}", _delete, operations.DELETE),
    Route("GET", "/v1/sessions", _sessions, operations.LIST),
    Route("GET", "/health", _health, operations.HEALTH, private=False),
    Route("GET", "/openapi.json", _openapi, operations.DESCRIBE, private=False),
)
