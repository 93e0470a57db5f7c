"""A user of Firebase stands until it is disabled, deleted or signed out; what cannot be learnt is not known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from harness.google import LOOKUP, Google
from harness.issuer import Issuer
from harness.signer import PROJECT
from identity.conftest import Clock
from legato.auth.firebase import emulated, firebase
from legato.auth.users import Users
from legato.principal import Principal

ANN = Principal("ann", None, 1_700_000_000_000)


class Account(httpx.Auth):
    def auth_flow(self, request: httpx.Request) -> Any:
        request.headers["Authorization"] = "Bearer access-1"
        yield request


@pytest.fixture
def users(google: Google, http: httpx.AsyncClient) -> Users:
    return Users(PROJECT, http, Account(), google.url)


@pytest.mark.parametrize(
    ("user", "stands"),
    [
        ({"localId": "ann", "email": "ann@example.com"}, True),
        ({"localId": "ann", "disabled": False, "validSince": "1700000000"}, True),
        ({"localId": "ann", "validSince": "1700000001"}, False),
        ({"localId": "ann", "disabled": True}, False),
        ({"localId": "bob"}, False),
        (None, False),
    ],
)
async def test_a_user_stands_unless_disabled_deleted_or_signed_in_before_its_tokens_were_revoked(
    users: Users, google: Google, user: dict[str, Any] | None, stands: bool
) -> None:
    google.users = {"ann": user} if user else {}
    assert await users.stand(ANN) is stands
    assert "authorization: bearer access-1\r\n" in google.heard


async def test_a_user_of_whom_it_is_not_known_when_it_signed_in_stands(users: Users, google: Google) -> None:
    google.users = {"ann": {"localId": "ann", "validSince": "1700000001"}}
    assert await users.stand(Principal("ann"))


@pytest.mark.parametrize(("status", "body"), [(403, b"{}"), (503, b""), (200, b"<html>"), (200, b'{"users": [{}]}')])
async def test_an_answer_that_says_nothing_is_no_answer(users: Users, google: Google, status: int, body: bytes) -> None:
    google.status, google.body = status, body
    with pytest.raises((httpx.HTTPError, ValidationError)):
        await users.stand(ANN)


async def test_the_emulator_is_asked_as_its_owner(google: Google, http: httpx.AsyncClient, clock: Clock) -> None:
    google.users = {"ann": {"localId": "ann"}}
    assert await emulated(PROJECT, http, clock, google.url.removeprefix("http://")).stands(ANN)
    assert google.asked[LOOKUP] == 1
    assert "authorization: bearer owner\r\n" in google.heard


async def test_users_are_looked_up_as_the_account_that_the_process_runs_as(
    google: Google, http: httpx.AsyncClient, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    google.users = {"ann": {"localId": "ann"}}
    with Issuer() as issuer:
        (tmp_path / "key.json").write_text(json.dumps(issuer.account()))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
        assert await firebase(PROJECT, http, clock, lookup=google.url).stands(ANN)
    assert "authorization: bearer token-1\r\n" in google.heard
