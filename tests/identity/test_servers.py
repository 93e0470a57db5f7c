"""Callers of real servers, under both faces and over both journals; and where their tokens are never found."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from google.cloud import firestore

from conftest import Place
from harness import Caller, Server
from harness.google import CERTIFICATES, LOOKUP, Google
from harness.signer import PROJECT, Ahead, Signer, id_claims, unsigned
from http_raw import refused, send, send_raw

TESTS = str(Path(__file__).resolve().parents[1])


@pytest.fixture
async def served(place: Place, google: Google, request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    verifier = getattr(request, "param", "users")
    env = {"LEGATO_AUTH": f"identity.verifiers:{verifier}", "GOOGLE_URL": google.url, "PYTHONPATH": TESTS}
    async with place.server(LEGATO_AUTH_CHECK="0.2", **env) as server:
        yield server


def texts(journal: str) -> Iterator[str]:
    """All that a journal holds."""
    if journal.startswith("sqlite"):
        with closing(sqlite3.connect(journal.removeprefix("sqlite:///"))) as db:
            yield from db.iterdump()
        return
    with closing(firestore.Client(journal.split("/")[2])) as client:
        waiting = [*client.collection("users").list_documents()]
        while waiting:
            document = waiting.pop()
            yield f"{document.path} {document.get().to_dict()}"
            waiting += [below for collection in document.collections() for below in collection.list_documents()]


async def test_a_users_turn_is_its_own_and_no_token_is_found_anywhere(
    served: Server, google: Google, signer: Signer, successor: Signer
) -> None:
    google.users = {"ann": {"localId": "ann"}}
    good = [signer.id_token(), signer.id_token(uid="bob")]
    bad = [signer.id_token(exp=Ahead(-11)), signer.id_token(aud="p"), successor.id_token(), unsigned(id_claims())]
    ann, bob = (Caller(served.url, token=token) for token in good)
    async with ann.start("s", "/say 3\n/tool lookup {}", "t") as answer:
        await answer.rest()
    assert answer.ended
    assert (await ann.snapshot("s")).status_code == 200
    refused(await bob.snapshot("s"), 404, "not_found")
    for token in [*bad, bad[0][:-5], f"{good[0]}.x", "eyJ" + "A" * 7000, f"{good[0]}, Bearer {good[0]}"]:
        refused(await Caller(served.url, token=token).snapshot("s"), 401, "unauthorized")
    assert google.asked[CERTIFICATES] == 1
    kept = "\n".join([served.output(), *texts(served.journal)])
    assert "turn.completed" in kept
    assert "DEBUG" in kept
    assert not re.search(r"eyJ|AAAA", kept)
    assert not [part for token in good + bad for part in token.split(".") if part and part in kept]


WITH_APPS = pytest.mark.parametrize("served", ["users_of_apps"], indirect=True)


@WITH_APPS
async def test_a_user_has_to_come_from_an_app_where_that_is_asked_for(served: Server, signer: Signer) -> None:
    headers = {"Authorization": f"Bearer {signer.id_token()}"}
    apps = {"": 401, signer.app_token(iss="x"): 401, signer.id_token(): 401, signer.app_token(): 200}
    for app, status in apps.items():
        answer = await send(served.caller(), "GET", "/v1/sessions", headers={**headers, "X-Firebase-AppCheck": app})
        assert answer.status_code == status
    assert not re.search("eyJ", served.output())


async def test_two_tokens_are_none_and_one_in_a_url_too(served: Server, signer: Signer) -> None:
    token = signer.id_token()
    lines = ["GET /v1/sessions HTTP/1.1", "Host: h", "Connection: close"]
    for more in [[f"Authorization: Bearer {token}"] * 2, [f"Authorization: Bearer {token}, Bearer {token}"]]:
        raw = await asyncio.to_thread(send_raw, served.caller(), "\r\n".join([*lines, *more, "", ""]).encode())
        assert raw.startswith(b"HTTP/1.1 401 ")
    for name in ("access_token", "token", "auth"):
        answer = await send(served.caller(), "GET", f"/v1/sessions?{name}={token}", headers={"Authorization": ""})
        refused(answer, 401, "unauthorized")


async def test_a_caller_is_asked_to_come_back_while_no_key_can_be_had(
    served: Server, google: Google, signer: Signer
) -> None:
    google.status = 500
    ann = Caller(served.url, token=signer.id_token())
    answer = await ann.request("GET", "/v1/sessions")
    refused(answer, 503, "keys_unavailable")
    google.status = 200
    await asyncio.sleep(float(answer.headers["retry-after"]) + 0.1)
    assert (await ann.request("GET", "/v1/sessions")).status_code == 200


async def test_a_user_who_is_deleted_loses_its_stream(served: Server, google: Google, signer: Signer) -> None:
    google.users = {"ann": {"localId": "ann"}}
    async with Caller(served.url, token=signer.id_token()).start("s", "/sleep 20", "t") as answer:
        await answer.until("turn.started")
        google.users = {}
        await answer.rest(10)
    assert answer.messages[-1].event == "stream.closing"
    assert json.loads(answer.messages[-1].data)["reason"] == "auth"


@pytest.fixture
async def emulated(place: Place, google: Google) -> AsyncIterator[Server]:
    env = {"LEGATO_AUTH": f"firebase:{PROJECT}", "FIREBASE_AUTH_EMULATOR_HOST": google.url.removeprefix("http://")}
    async with place.server(LEGATO_AUTH_CHECK="0.2", **env) as server:
        yield server


async def test_the_emulators_users_are_users_where_it_is_named(
    emulated: Server, google: Google, signer: Signer
) -> None:
    google.users = {"ann": {"localId": "ann"}}
    refused(await Caller(emulated.url, token=signer.id_token()).snapshot("s"), 401, "unauthorized")
    refused(await Caller(emulated.url, token=unsigned(id_claims(aud="p-two"))).snapshot("s"), 401, "unauthorized")
    async with Caller(emulated.url, token=unsigned(id_claims())).start("s", "/sleep 20", "t") as answer:
        await answer.until("turn.started")
        async with asyncio.timeout(10):
            await google.arrived.wait()
    assert set(google.asked) == {LOOKUP}


async def test_a_server_on_the_platform_does_not_start_with_the_emulators_tokens(tmp_path: Path) -> None:
    env = {"LEGATO_AUTH": "firebase:p-one", "FIREBASE_AUTH_EMULATOR_HOST": "127.0.0.1:9099", "K_SERVICE": "gateway"}
    server = Server(f"sqlite:///{tmp_path}/journal", tmp_path / "log", env=env)
    with pytest.raises(RuntimeError, match="FIREBASE_AUTH_EMULATOR_HOST"):
        async with server:
            pass
