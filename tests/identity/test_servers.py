"""Callers of real servers, under both faces and over both journals; and where their tokens are never found."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from google.cloud import firestore

from conftest import Place
from harness import Caller, Server
from harness.google import CERTIFICATES, Google
from harness.signer import Ahead, Signer, id_claims, unsigned
from http_raw import refused

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
