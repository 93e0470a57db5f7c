"""Where App Check is asked for, a caller is somebody only if it comes from an app of the project."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import jwt
import pytest

from harness.google import KEY_SET, Google
from harness.signer import NUMBER, PROJECT, Ahead, Signer, app_claims, unsigned
from identity.conftest import Clock
from legato.auth import Developers
from legato.auth.app_check import AppCheck, app_check, key_set
from legato.errors import KeysUnavailable, Unauthorized
from legato.principal import Principal


@pytest.fixture
def verifier(google: Google, http: httpx.AsyncClient, clock: Clock) -> AppCheck:
    return app_check(NUMBER, Developers(clock), http, clock, f"{google.url}{KEY_SET}")


async def caller(verifier: AppCheck, token: str, bearer: str = "dev:ann") -> Principal:
    return await verifier.verify({"authorization": f"Bearer {bearer}", "x-firebase-appcheck": token})


@pytest.mark.parametrize("changes", [{}, {"exp": Ahead(-8)}, {"iat": Ahead(8)}, {"aud": f"projects/{NUMBER}"}])
async def test_a_caller_from_an_app_is_who_its_token_names(
    verifier: AppCheck, signer: Signer, changes: dict[str, Any]
) -> None:
    assert await caller(verifier, signer.app_token(**changes)) == Principal("ann")


async def test_a_caller_from_an_app_still_has_to_be_somebody(verifier: AppCheck, signer: Signer) -> None:
    with pytest.raises(Unauthorized):
        await caller(verifier, signer.app_token(), "nobody")


async def test_a_caller_without_the_header_is_nobody(verifier: AppCheck) -> None:
    with pytest.raises(Unauthorized, match="X-Firebase-AppCheck"):
        await verifier.verify({"authorization": "Bearer dev:ann"})


WRONG: dict[str, Callable[[Signer], str]] = {
    "another project": lambda s: s.app_token(aud=["projects/1", "projects/p-two"]),
    "the project by its name": lambda s: s.app_token(aud=[f"projects/{PROJECT}"]),
    "no audience": lambda s: s.app_token(aud=None),
    "another issuer": lambda s: s.app_token(iss="https://firebaseappcheck.googleapis.com/1"),
    "no issuer": lambda s: s.app_token(iss=None),
    "expired by 11 s": lambda s: s.app_token(exp=Ahead(-11)),
    "no expiry": lambda s: s.app_token(exp=None),
    "issued never": lambda s: s.app_token(iat=None),
    "issued in a minute": lambda s: s.app_token(iat=Ahead(60)),
    "no app": lambda s: s.app_token(sub=None),
    "an app without a name": lambda s: s.app_token(sub=""),
    "an ID token": lambda s: s.id_token(),
    "unsigned": lambda s: unsigned(app_claims(), kid=s.name),
    "signed by another under that name": lambda s: Signer(s.name).app_token(),
    "signed by HS256": lambda s: jwt.encode(app_claims(), "secret" * 8, "HS256", {"kid": s.name}),
    "of another type": lambda s: s.sign(app_claims(), typ="at+jwt"),
    "another's signature": lambda s: s.app_token().rpartition(".")[0] + "." + s.id_token().rpartition(".")[2],
    "two of them": lambda s: f"{s.app_token()}, {s.app_token()}",
    "garbage": lambda _: "garbage",
}


@pytest.mark.parametrize("forge", WRONG.values(), ids=WRONG.keys())
async def test_a_caller_with_a_token_of_anything_else_is_nobody(
    verifier: AppCheck, signer: Signer, forge: Callable[[Signer], str]
) -> None:
    token = forge(signer)
    with pytest.raises(Unauthorized) as refused:
        await caller(verifier, token)
    assert token not in str(refused.value)


async def test_a_caller_is_not_turned_away_for_want_of_the_key_set(
    verifier: AppCheck, signer: Signer, google: Google
) -> None:
    google.status = 500
    with pytest.raises(KeysUnavailable):
        await caller(verifier, signer.app_token())


async def test_a_caller_stands_as_its_verifier_says(verifier: AppCheck) -> None:
    assert await verifier.stands(Principal("ann"))


def test_a_key_set_without_a_key_for_these_tokens_is_none(signer: Signer) -> None:
    for keys in ([], [{**signer.jwk, "alg": "RS512"}], [{k: v for k, v in signer.jwk.items() if k != "kid"}]):
        with pytest.raises((ValueError, jwt.PyJWKSetError)):
            key_set({"keys": keys})
