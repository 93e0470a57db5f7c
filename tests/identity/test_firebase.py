"""A caller by Firebase is the user of the project whose token Google signed, or nobody."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from harness.google import CERTIFICATES, Google
from harness.signer import PROJECT, Ahead, Signer, id_claims, unsigned
from identity.conftest import Clock
from legato.auth.firebase import Firebase, emulated, firebase
from legato.errors import KeysUnavailable, Unauthorized
from legato.principal import Principal


@pytest.fixture
def verifier(google: Google, http: httpx.AsyncClient, clock: Clock) -> Firebase:
    return firebase(PROJECT, http, clock, keys=f"{google.url}{CERTIFICATES}", lookup=google.url)


async def caller(verifier: Firebase, token: str) -> Principal:
    return await verifier.verify({"authorization": f"Bearer {token}"})


async def test_a_user_is_who_its_token_names_until_it_expires(verifier: Firebase, signer: Signer) -> None:
    claims = id_claims("Ann_1|é")
    principal = Principal("Ann_1|é", claims["exp"] * 1000, claims["auth_time"] * 1000)
    assert await caller(verifier, signer.sign(claims)) == principal


@pytest.mark.parametrize(
    "changes",
    [{"exp": Ahead(-9)}, {"iat": Ahead(9)}, {"auth_time": Ahead(9)}],
    ids=lambda changes: next(iter(changes)),
)
async def test_clocks_may_differ_by_less_than_ten_seconds(
    verifier: Firebase, signer: Signer, changes: dict[str, Any]
) -> None:
    assert (await caller(verifier, signer.id_token(**changes))).uid == "ann"


WRONG: dict[str, dict[str, Any]] = {
    "another audience": {"aud": "p-two"},
    "no audience": {"aud": None},
    "several audiences": {"aud": [PROJECT, "p-two"]},
    "the issuer of another project": {"iss": "https://securetoken.google.com/p-two"},
    "another issuer": {"iss": f"https://securetoken.google.com.evil.net/{PROJECT}"},
    "an issuer by http": {"iss": f"http://securetoken.google.com/{PROJECT}"},
    "no issuer": {"iss": None},
    "expired by 11 s": {"exp": Ahead(-11)},
    "no expiry": {"exp": None},
    "an expiry in words": {"exp": "tomorrow"},
    "an expiry without end": {"exp": float("inf")},
    "an expiry that is true": {"exp": True},
    "issued in a minute": {"iat": Ahead(60)},
    "issued never": {"iat": None},
    "signed in in a minute": {"auth_time": Ahead(60)},
    "signed in never": {"auth_time": None},
    "no subject": {"sub": None},
    "a tenant's user, who may have the id of another": {"firebase": {"tenant": "t-1"}},
    "a tenant of no kind": {"firebase": {"tenant": 1}},
    "signed in in no way": {"firebase": "custom"},
    "a subject that is a number": {"sub": 7},
}


@pytest.mark.parametrize("changes", WRONG.values(), ids=WRONG.keys())
async def test_a_token_that_google_signed_for_something_else_is_nobodys(
    verifier: Firebase, signer: Signer, changes: dict[str, Any]
) -> None:
    with pytest.raises(Unauthorized):
        await caller(verifier, signer.id_token(**changes))


def tampered(token: str) -> str:
    head, _, signature = token.split(".")
    return f"{head}.{unsigned(id_claims('eve')).split('.')[1]}.{signature}"


def by_the_public_key(signer: Signer) -> str:
    """HS256, the secret being the key that everybody knows: PyJWT refuses to make it, so it is put together."""
    pem = signer.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    head = {"alg": "HS256", "typ": "JWT", "kid": signer.name}
    parts = ".".join(encoded(json.dumps(part).encode()) for part in (head, id_claims()))
    return f"{parts}.{encoded(hmac.digest(pem, parts.encode(), 'sha256'))}"


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


FORGED: dict[str, Callable[[Signer], str]] = {
    "unsigned": lambda _: unsigned(id_claims()),
    "unsigned, with a key's name": lambda s: unsigned(id_claims(), kid=s.name),
    "signed by the public key": by_the_public_key,
    "with another payload": lambda s: tampered(s.id_token()),
    "without its signature": lambda s: s.id_token().rpartition(".")[0] + ".",
    "with a shorter signature": lambda s: s.id_token()[:-8],
    "signed by another under that name": lambda s: Signer(s.name).id_token(),
    "without a key's name": lambda s: s.sign(id_claims(), kid=None),
    "of another type": lambda s: s.sign(id_claims(), typ="at+jwt"),
    "with letters that are none of base64": lambda s: s.id_token() + "=",
    "longer than 8 KiB": lambda s: s.id_token(more="x" * 8192),
    "garbage": lambda _: "a.b.c",
    "two parts": lambda _: "a.b",
    "no JSON": lambda _: f"{encoded(b'{')}.{encoded(b'{')}.",
    "no object": lambda _: f"{encoded(b'[]')}.{encoded(b'1')}.",
    "nested deeply": lambda _: f"{encoded(b'[' * 3000)}.{encoded(b'{}')}.",
    "a number of 6,000 digits": lambda _: f"{encoded(b'1' * 6000)}.{encoded(b'{}')}.",
    "8 KB of nothing": lambda _: "A" * 8000 + "..",
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED.keys())
async def test_what_google_did_not_sign_is_nobodys_and_is_not_repeated(
    verifier: Firebase, signer: Signer, forge: Callable[[Signer], str]
) -> None:
    token = forge(signer)
    with pytest.raises(Unauthorized) as refused:
        await caller(verifier, token)
    assert not any(len(part) > 5 and part in str(refused.value) for part in token.split("."))


@pytest.mark.parametrize(
    "header",
    [{"alg": "none"}, {"alg": "HS256"}, {"alg": "ES256"}, {"kid": None}, {"kid": ["key-1"]}, {"typ": "at+jwt"}],
)
async def test_what_cannot_be_googles_costs_no_request(
    verifier: Firebase, signer: Signer, google: Google, header: dict[str, Any]
) -> None:
    head = encoded(json.dumps({"alg": "RS256", "kid": signer.name, **header}).encode())
    with pytest.raises(Unauthorized):
        await caller(verifier, f"{head}.{signer.id_token().partition('.')[2]}")
    assert not google.asked


async def test_a_token_of_nearly_8_kib_is_read(verifier: Firebase, signer: Signer) -> None:
    token = signer.id_token(more="x" * 5500)
    assert 7900 < len(token) < 8192
    assert (await caller(verifier, token)).uid == "ann"


async def test_a_token_signed_by_a_key_that_came_since_is_taken_once_it_is_published(
    verifier: Firebase, signer: Signer, successor: Signer, google: Google, clock: Clock
) -> None:
    await caller(verifier, signer.id_token())
    google.signers = [successor]
    clock.ahead = 9_000
    with pytest.raises(Unauthorized, match="nobody has published"):
        await caller(verifier, successor.id_token(exp=Ahead(99)))
    assert google.asked[CERTIFICATES] == 1
    clock.ahead = 11_000
    assert (await caller(verifier, successor.id_token(exp=Ahead(99)))).uid == "ann"
    with pytest.raises(Unauthorized, match="nobody has published"):
        await caller(verifier, signer.id_token())


async def test_a_token_is_neither_good_nor_bad_while_no_certificate_can_be_had(
    verifier: Firebase, signer: Signer, google: Google
) -> None:
    google.status = 500
    with pytest.raises(KeysUnavailable):
        await caller(verifier, signer.id_token())


@pytest.fixture
def emulator(google: Google, http: httpx.AsyncClient, clock: Clock) -> Firebase:
    return emulated(PROJECT, http, clock, google.url.removeprefix("http://"))


async def test_the_emulators_tokens_are_not_signed_and_count_where_it_is_named(emulator: Firebase) -> None:
    assert (await caller(emulator, unsigned(id_claims()))).uid == "ann"


@pytest.mark.parametrize("changes", WRONG.values(), ids=WRONG.keys())
async def test_a_token_of_the_emulator_has_to_be_right_all_the_same(
    emulator: Firebase, changes: dict[str, Any]
) -> None:
    with pytest.raises(Unauthorized):
        await caller(emulator, unsigned(id_claims(**changes)))


async def test_a_signed_token_does_not_count_where_the_emulator_is_named(emulator: Firebase, signer: Signer) -> None:
    for token in (signer.id_token(), unsigned(id_claims()) + "xxxx"):
        with pytest.raises(Unauthorized, match="not signed"):
            await caller(emulator, token)
