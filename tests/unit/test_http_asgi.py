"""The ASGI face: mounted anywhere, closed with its client, and one response whatever happens."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from legato.errors import SettingsError
from legato.http.asgi import AsgiFace, Message
from legato.http.message import DRAIN_BYTES
from scripted_gateway import ScriptedStream, Stage

HEADERS = {"Authorization": "Bearer dev:ann"}


@pytest.fixture
async def stage() -> Stage:
    return Stage()


class Client:
    """One request over bare ASGI. `sent` is what the face sent so far, `read_when_sent` how much it had read at each;
    it takes at most `takes` messages."""

    def __init__(self, method: str, path: str, body: Iterable[bytes] = (), takes: int = 1000) -> None:
        headers = [(b"authorization", b"Bearer dev:ann"), (b"content-type", b"application/json")]
        self.scope: dict[str, Any] = {
            "type": "http", "method": method, "path": path, "root_path": "", "query_string": b"", "headers": headers,
        }  # fmt: skip
        self.sent: list[Message] = []
        self.read = 0
        self.read_when_sent: list[int] = []
        self.ends = False
        self._body, self._takes = iter(body), takes
        self._left, self._news = asyncio.Event(), asyncio.Event()

    async def receive(self) -> Message:
        part = next(self._body, None)
        if part is not None:
            self.read += len(part)
            return {"type": "http.request", "body": part, "more_body": not self.ends}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if len(self.sent) == self._takes:
            await asyncio.Event().wait()
        self.sent.append(message)
        self.read_when_sent.append(self.read)
        self._news.set()

    async def has(self, body: bytes) -> None:
        while not any(message.get("body") == body for message in self.sent):
            self._news.clear()
            await self._news.wait()

    def leave(self) -> None:
        self._left.set()


async def through(app: Any, path: str, method: str = "GET", **more: Any) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
        return await http.request(method, path, headers=HEADERS, **more)


async def test_it_is_mounted_under_a_path_of_the_teams_own(stage: Stage) -> None:
    app = Starlette(routes=[Mount("/api/agent", AsgiFace(stage.build))])
    streamed = await through(app, "/api/agent/v1/sessions/s1/turns", "POST", json={"input": 1, "turn": "t1"})
    assert (streamed.status_code, streamed.content) == (200, b"onetwo")
    assert (await through(app, "/api/agent/health")).status_code == 200
    assert (await through(app, "/api/agent/api/agent/health")).status_code == 404


async def test_it_serves_as_a_whole_application(stage: Stage) -> None:
    assert (await through(AsgiFace(stage.build), "/health")).json() == {"status": "ok"}


async def test_it_is_built_by_the_first_request_and_closed_with_the_application(stage: Stage) -> None:
    face = AsgiFace(stage.build)
    assert stage.built == 0
    await through(face, "/health")
    await through(face, "/health")
    assert stage.built == 1
    messages = iter(({"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}))
    sent: list[Message] = []

    async def receive() -> Message:
        return next(messages)

    async def send(message: Message) -> None:
        sent.append(message)

    await face({"type": "lifespan"}, receive, send)
    assert [message["type"] for message in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert stage.closed


async def test_what_cannot_be_built_is_a_problem_and_is_tried_again(stage: Stage) -> None:
    face = AsgiFace(stage.build)
    stage.broken = SettingsError("LEGATO_AGENT='x:y': no module")
    answer = await through(face, "/health")
    assert (answer.status_code, answer.json()["code"]) == (500, "settings")
    stage.broken = None
    assert (await through(face, "/health")).status_code == 200


async def test_a_client_that_leaves_closes_its_stream(stage: Stage) -> None:
    stream = stage.gateway.stream = ScriptedStream([b"one"], endless=True)
    client = Client("GET", "/v1/sessions/s1/events")
    serving = asyncio.create_task(AsgiFace(stage.build)(client.scope, client.receive, client.send))
    await client.has(b"one")
    assert not stream.closed.is_set()
    client.leave()
    await asyncio.wait_for(serving, 30)
    assert stream.closed.is_set()


async def test_a_client_that_takes_nothing_is_given_up(stage: Stage) -> None:
    stream = stage.gateway.stream = ScriptedStream([b"one", b"two", b"three"], endless=True)
    client = Client("GET", "/v1/sessions/s1/events", takes=2)
    await asyncio.wait_for(AsgiFace(stage.build, stalled=0.01)(client.scope, client.receive, client.send), 5)
    assert stream.closed.is_set()
    assert stream.given == 2


async def test_a_client_that_takes_everything_is_not_given_up_while_nothing_happens(stage: Stage) -> None:
    stream = stage.gateway.stream = ScriptedStream([b"one"], endless=True)
    client = Client("GET", "/v1/sessions/s1/events")
    serving = asyncio.create_task(AsgiFace(stage.build, stalled=0.005)(client.scope, client.receive, client.send))
    done, _ = await asyncio.wait({serving}, timeout=0.1)
    assert not done
    assert not stream.closed.is_set()
    client.leave()
    await serving


@pytest.mark.parametrize("broken", [RuntimeError("broken"), None])
async def test_a_stream_that_ends_or_breaks_is_one_response_with_an_end(stage: Stage, broken: Exception | None) -> None:
    stage.gateway.stream = ScriptedStream([b"one", *([broken] if broken else [])])
    client = Client("GET", "/v1/sessions/s1/events")
    await AsgiFace(stage.build)(client.scope, client.receive, client.send)
    kinds = ["http.response.start", "http.response.body", "http.response.body"]
    assert [message["type"] for message in client.sent] == kinds
    assert [message.get("more_body", False) for message in client.sent] == [False, True, False]


async def test_a_body_that_is_too_large_is_refused_at_once_and_its_rest_dropped_in_bounds(stage: Stage) -> None:
    client = Client("POST", "/v1/sessions/s1/turns", itertools.repeat(b"x" * 500))
    client.scope["headers"].append((b"transfer-encoding", b"chunked"))
    await AsgiFace(stage.build)(client.scope, client.receive, client.send)
    assert [(message.get("status"), message.get("more_body")) for message in client.sent] == [
        (413, None), (None, True), (None, None),
    ]  # fmt: skip
    assert client.read_when_sent[1] <= stage.settings.body_bytes + 500
    assert DRAIN_BYTES <= client.read - client.read_when_sent[1] <= DRAIN_BYTES + 500


async def test_a_client_that_sends_no_more_of_a_refused_body_is_not_waited_for(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legato.http.asgi.DRAIN_SECONDS", 0.05)
    client = Client("POST", "/v1/sessions/s1/turns", [b"x"])
    client.scope["headers"].append((b"content-length", b"5000000"))
    await asyncio.wait_for(AsgiFace(stage.build)(client.scope, client.receive, client.send), 10)
    assert client.sent[0]["status"] == 413
    assert client.sent[-1] == {"type": "http.response.body", "body": b""}


async def test_a_client_that_stops_in_its_body_is_refused(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legato.http.asgi.DRAIN_SECONDS", 0.05)
    client = Client("POST", "/v1/sessions/s1/turns", [b'{"input"'])
    client.scope["headers"].append((b"content-length", b"11"))
    await asyncio.wait_for(AsgiFace(stage.build, arriving=0.01)(client.scope, client.receive, client.send), 10)
    assert client.sent[0]["status"] == 422
    assert client.sent[-1] == {"type": "http.response.body", "body": b""}
    assert not stage.gateway.calls


async def test_a_client_that_leaves_in_its_body_has_asked_nothing(stage: Stage) -> None:
    client = Client("POST", "/v1/sessions/s1/turns", [b'{"input":1}'])
    client.leave()
    await AsgiFace(stage.build)(client.scope, client.receive, client.send)
    assert not client.sent
    assert not stage.gateway.calls


async def test_a_header_sent_twice_is_both_values_and_so_no_id(stage: Stage) -> None:
    client = Client("POST", "/v1/sessions/s1/turns", [b'{"input":1}'])
    client.scope["headers"] += [(b"idempotency-key", b"a"), (b"Idempotency-Key", b"b")]
    client.ends = True
    await AsgiFace(stage.build)(client.scope, client.receive, client.send)
    assert client.sent[0]["status"] == 422
    assert not stage.gateway.calls


async def test_what_was_not_opened_before_it_drains_is_not_any_more(stage: Stage) -> None:
    face = AsgiFace(stage.build)
    await face.drain()
    answer = await through(face, "/health")
    assert (answer.status_code, answer.json()["code"], stage.built) == (503, "draining", 0)


async def test_it_drains_what_it_serves(stage: Stage) -> None:
    face = AsgiFace(stage.build)
    await through(face, "/health")
    await face.drain()
    assert stage.drained
