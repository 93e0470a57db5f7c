"""Tokens by google-auth, from an endpoint on this machine: real keys, real requests."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.auth import jwt
from google.oauth2.service_account import Credentials

from harness.issuer import SECRET, Issuer
from legato import ToolFailed
from legato.app import now
from legato.credentials import Shared, Token
from legato.credentials.google import GoogleSource, default_credentials, id_token, refresh_token, service_account

SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as running:
        yield running


@pytest.fixture
def key_file(issuer: Issuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """It is also what the environment has."""
    path = tmp_path / "key.json"
    path.write_text(json.dumps(issuer.account()))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    return path


def refreshing(issuer: Issuer) -> GoogleSource:
    return refresh_token("their-refresh-token", "me", "client-secret", f"{issuer.url}/token")


def lasts_an_hour(token: Token) -> bool:
    return token.expires_at is not None and 3_590_000 < token.expires_at - now() <= 3_600_000


async def test_a_refresh_token_gives_access_tokens(issuer: Issuer) -> None:
    token = await refreshing(issuer).fetch()
    assert token.value == "token-1"
    assert lasts_an_hour(token)
    assert (issuer.grants[0]["refresh_token"], issuer.grants[0]["client_id"]) == ("their-refresh-token", "me")


async def test_a_service_account_gives_access_tokens_of_its_scopes(issuer: Issuer, key_file: Path) -> None:
    for key in (issuer.account(), key_file, str(key_file)):
        token = await service_account(key, SCOPES).fetch()
        assert lasts_an_hour(token)
        assert jwt.decode(issuer.grants[-1]["assertion"], verify=False)["scope"] == SCOPES[0]
    assert token.value == "token-3"


async def test_the_environment_gives_access_tokens(issuer: Issuer, key_file: Path) -> None:
    assert (await default_credentials(SCOPES).fetch()).value == "token-1"


async def test_the_environment_gives_id_tokens_for_one_service(issuer: Issuer, key_file: Path) -> None:
    token = await id_token("https://service.example").fetch()
    assert jwt.decode(token.value, verify=False)["aud"] == "https://service.example"
    assert token.expires_at is not None
    assert lasts_an_hour(token)


async def test_each_fetch_gives_a_fresh_token(issuer: Issuer) -> None:
    source = refreshing(issuer)
    assert [(await source.fetch()).value for _ in range(2)] == ["token-1", "token-2"]


async def test_a_refresh_that_was_given_up_is_joined_and_not_made_beside(issuer: Issuer) -> None:
    source = refreshing(issuer)
    issuer.open.clear()
    given_up = asyncio.create_task(source.fetch())
    assert await asyncio.to_thread(issuer.reached.wait, 5)
    given_up.cancel()
    await asyncio.wait({given_up})
    again = asyncio.create_task(source.fetch())
    await asyncio.sleep(0)
    issuer.open.set()
    assert ((await again).value, len(issuer.grants)) == ("token-1", 1)


async def test_an_endpoint_that_refuses_is_told_by_its_code_and_without_its_words(
    issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    issuer.refusal = "invalid_grant"
    with pytest.raises(ToolFailed, match="invalid_grant") as failed:
        await Shared("mail", refreshing(issuer), now).token()
    assert failed.value.code == "credential_unavailable"
    assert "invalid_grant" in caplog.text
    for secret in (SECRET, "their-refresh-token", "client-secret"):
        assert secret not in f"{failed.value} {caplog.text}"


async def test_credentials_of_a_team_s_own_are_taken(issuer: Issuer) -> None:
    account = Credentials.from_service_account_info(issuer.account(), scopes=SCOPES)
    assert (await GoogleSource(lambda _: account).fetch()).value == "token-1"
