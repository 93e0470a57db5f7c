"""The Flask face: mounted anywhere, and a stream that crosses from the core's loop to a thread."""

from __future__ import annotations

import asyncio
import io
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator

import flask
import functions_framework
import pytest

from legato.errors import SettingsError
from legato.http.flask import AHEAD, DEAD_CORE, Core, FlaskFace, Handover, blueprint
from legato.http.message import DRAIN_BYTES
from scripted_gateway import ScriptedStream, Stage

HEADERS = {"Authorization": "Bearer dev:ann"}


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def face(stage: Stage) -> Iterator[FlaskFace]:
    face = FlaskFace(stage.build)
    yield face
    face.close()


@pytest.fixture
def client(face: FlaskFace) -> flask.testing.FlaskClient:
    app = flask.Flask(__name__)
    app.register_blueprint(blueprint(face), url_prefix="/api/agent")
    app.after_request(functions_framework.read_request)
    return app.test_client()


@pytest.fixture
def core() -> Iterator[Core]:
    core = Core()
    yield core
    core.stop()


async def settle() -> None:
    """Lets everything on the core's loop run that can run."""
    for _ in range(200):
        await asyncio.sleep(0)


def test_it_is_mounted_under_a_path_of_the_teams_own(client: flask.testing.FlaskClient) -> None:
    body = {"input": 1, "turn": "t1"}
    streamed = client.post("/api/agent/v1/sessions/s1/turns", json=body, headers=HEADERS)
    assert (streamed.status_code, streamed.data) == (200, b"onetwo")
    assert streamed.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert client.get("/api/agent/health").status_code == 200
    assert client.get("/api/agent/api/agent/health").status_code == 404


@pytest.mark.parametrize("method", ["HEAD", "PUT", "PATCH", "OPTIONS", "DELETE"])
def test_a_method_that_is_not_served_is_answered_by_legato(client: flask.testing.FlaskClient, method: str) -> None:
    answer = client.open("/api/agent/v1/sessions/s1/events", method=method, headers=HEADERS)
    assert (answer.status_code, answer.headers["Allow"], answer.headers["Legato-Instance"]) == (405, "GET", "i1")


def test_it_is_built_by_the_first_request_and_closed_once(stage: Stage) -> None:
    face, app = FlaskFace(stage.build), flask.Flask(__name__)
    app.register_blueprint(blueprint(face))
    assert stage.built == 0
    assert [app.test_client().get("/health").status_code for _ in "ab"] == [200, 200]
    assert stage.built == 1
    face.close()
    assert stage.closed


def test_what_cannot_be_built_is_a_problem_and_is_tried_again(client: flask.testing.FlaskClient, stage: Stage) -> None:
    stage.broken = SettingsError("LEGATO_AGENT='x:y': no module")
    answer = client.get("/api/agent/health")
    assert (answer.status_code, answer.json and answer.json["code"]) == (500, "settings")
    stage.broken = None
    assert client.get("/api/agent/health").status_code == 200


def test_a_response_that_is_closed_closes_its_stream(client: flask.testing.FlaskClient, stage: Stage) -> None:
    stream = stage.gateway.stream = ScriptedStream([b"one"], endless=True)
    answer = client.get("/api/agent/v1/sessions/s1/events", headers=HEADERS, buffered=False)
    assert next(answer.iter_encoded()) == b"one"
    assert not stream.closed.is_set()
    answer.close()
    assert stream.closed.wait(1)


@pytest.mark.parametrize(("threads", "room"), [(1, 1), (2, 1), (4, 3), (8, 6), (200, 196)])
def test_what_lingers_leaves_threads_to_other_requests(
    client: flask.testing.FlaskClient, face: FlaskFace, stage: Stage, threads: int, room: int
) -> None:
    face.spare(threads)
    events, stage.gateway.stream = "/api/agent/v1/sessions/s1/events", ScriptedStream([b"one"], endless=True)
    decision = "/api/agent/v1/sessions/s1/turns/t1/approvals/1-1-1"
    streams = [client.get(events, headers=HEADERS, buffered=False) for _ in range(room)]
    calls = len(stage.gateway.calls)
    refused = [
        client.get(events, headers=HEADERS),
        client.get(f"{events}?wait=1", headers=HEADERS),
        client.post("/api/agent/v1/sessions/s1/turns", json={"input": 1}, headers=HEADERS),
        client.post(decision, json={"approved": True}, headers={**HEADERS, "Accept": "text/event-stream"}),
    ]
    assert [(answer.status_code, answer.get_json()["code"]) for answer in refused] == [(503, "no_room")] * 4
    assert len(stage.gateway.calls) == calls
    assert client.get(f"{events}?wait=0", headers=HEADERS).status_code == 200
    assert client.post(decision, json={"approved": True}, headers=HEADERS).status_code == 202
    streams[0].close()
    assert client.get(f"{events}?wait=1", headers=HEADERS).status_code == 200
    assert client.get(f"{events}?wait=1", headers=HEADERS).status_code == 200
    for stream in streams:
        stream.close()


def test_a_stream_that_breaks_ends_after_what_was_sent(client: flask.testing.FlaskClient, stage: Stage) -> None:
    stage.gateway.stream = ScriptedStream([b"one", RuntimeError("broken"), b"two"])
    assert client.get("/api/agent/v1/sessions/s1/events", headers=HEADERS).data == b"one"


def test_a_body_that_says_it_is_too_large_is_read_after_its_answer(client: flask.testing.FlaskClient) -> None:
    body = io.BytesIO(b"x" * 5000)
    environ = {"CONTENT_LENGTH": "5000", "CONTENT_TYPE": "application/json", "wsgi.input": body}
    answer = client.post("/api/agent/v1/sessions/s1/turns", headers=HEADERS, environ_overrides=environ)
    assert answer.status_code == 413
    assert body.tell() == 0
    assert answer.json
    assert body.tell() == 5000


def test_a_body_that_is_too_large_is_refused_at_once_and_its_rest_dropped_in_bounds(
    client: flask.testing.FlaskClient, stage: Stage
) -> None:
    body = io.BytesIO(b"x" * 5_000_000)
    environ = {"CONTENT_LENGTH": "", "CONTENT_TYPE": "application/json", "wsgi.input": body}
    environ |= {"wsgi.input_terminated": "1", "HTTP_TRANSFER_ENCODING": "chunked"}
    answer = client.post("/api/agent/v1/sessions/s1/turns", headers=HEADERS, environ_overrides=environ)
    assert answer.status_code == 413
    assert body.tell() == stage.settings.body_bytes + 1
    assert answer.json
    assert body.tell() == stage.settings.body_bytes + 1 + DRAIN_BYTES


def test_a_body_that_the_application_itself_forbids_is_refused(client: flask.testing.FlaskClient) -> None:
    client.application.config["MAX_CONTENT_LENGTH"] = 10
    answer = client.post("/api/agent/v1/sessions/s1/turns", data=b"x" * 5000, headers=HEADERS)
    assert (answer.status_code, answer.json and answer.json["code"]) == (413, "too_large")


def test_a_client_that_sends_no_more_of_a_refused_body_holds_its_thread_for_two_seconds(
    client: flask.testing.FlaskClient,
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, ours.makefile("rb", buffering=0) as body:
        environ = {"CONTENT_LENGTH": "5000000", "wsgi.input": body, "gunicorn.socket": ours}
        began = time.monotonic()
        answer = client.post("/api/agent/v1/sessions/s1/turns", headers=HEADERS, environ_overrides=environ)
        assert answer.json
        assert 1 < time.monotonic() - began < 10


def test_a_client_that_stops_reading_does_not_hold_its_thread(client: flask.testing.FlaskClient) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        client.get("/api/agent/health", environ_overrides={"gunicorn.socket": ours})
        assert ours.gettimeout() == 45


def test_a_core_that_dies_takes_its_process_along() -> None:
    """An agent's own task that raises SystemExit ends the loop; a server without one would fail for ever."""
    program = """
import asyncio, sys, time
from legato.http.flask import Core

async def fatal():
    asyncio.get_running_loop().call_soon(sys.exit)

Core().run(fatal())
time.sleep(30)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert ended.returncode == DEAD_CORE
    assert b"the event loop has ended" in ended.stderr


def test_frames_cross_in_order_and_whole(core: Core) -> None:
    frames = [b"%d" % n * (n % 300) for n in range(1000)]
    assert b"".join(Handover(ScriptedStream([*frames]).frames(), core.loop)) == b"".join(frames)


def test_what_is_ready_crosses_in_one_piece(core: Core) -> None:
    handover = Handover(ScriptedStream([b"a", b"b", b"c"]).frames(), core.loop)
    core.run(settle())
    assert [*handover] == [b"abc"]


def test_an_ended_stream_stays_ended(core: Core) -> None:
    handover = Handover(ScriptedStream([b"a"]).frames(), core.loop)
    assert [*handover] == [b"a"]
    assert [*handover] == []


def test_the_producer_waits_for_a_thread_that_does_not_take(core: Core) -> None:
    stream = ScriptedStream([b"x" * 1024] * 1000)
    handover = Handover(stream.frames(), core.loop)
    core.run(settle())
    assert stream.given == AHEAD // 1024
    assert len(next(handover)) == AHEAD
    core.run(settle())
    assert stream.given == 2 * AHEAD // 1024
    handover.close()


def test_closing_cancels_a_producer_that_waits(core: Core) -> None:
    for stream in (ScriptedStream([b"one"], endless=True), ScriptedStream([b"x" * AHEAD, b"never"])):
        handover = Handover(stream.frames(), core.loop)
        core.run(settle())
        handover.close()
        assert stream.closed.wait(1)


def test_a_thousand_streams_at_once_lose_nothing(core: Core) -> None:
    async def counted(n: int) -> AsyncGenerator[bytes, None]:
        for _ in range(n):
            yield b"."
            await asyncio.sleep(0)

    streams = [Handover(counted(n), core.loop) for n in range(1000)]
    assert [len(b"".join(stream)) for stream in streams] == [*range(1000)]


def test_what_was_not_opened_before_it_drains_is_not_any_more(
    face: FlaskFace, client: flask.testing.FlaskClient, stage: Stage
) -> None:
    face.drain().result()
    answer = client.get("/api/agent/health")
    assert (answer.status_code, answer.get_json()["code"], stage.built) == (503, "draining", 0)


def test_it_drains_what_it_serves(face: FlaskFace, client: flask.testing.FlaskClient, stage: Stage) -> None:
    client.get("/api/agent/health")
    face.drain().result()
    assert stage.drained
