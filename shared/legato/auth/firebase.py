"""Callers by Firebase ID tokens. Source: Firebase, "Verify ID tokens using a third-party JWT library"."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import google.auth.crypt
import google.auth.jwt
import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from legato.auth import bearer
from legato.auth.keys import Keys
from legato.auth.tokens import SKEW, header, key_id
from legato.auth.users import LOOKUP, SCOPES, Owner, Users
from legato.credentials import Credential, Shared, Source
from legato.credentials.google import default_credentials
from legato.errors import Unauthorized
from legato.principal import Principal

CERTIFICATES: Final = "https://www.googleapis.com/robot/v1/metadata/x509/securetoken@system.gserviceaccount.com"
_KIND: Final = "a Firebase ID token"


class SignIn(BaseModel):
    """How its user signed in. Two tenants may give one id to two users. Source: Identity Platform, multi-tenancy."""

    tenant: str | None = None


class Claims(BaseModel):
    """Of an ID token; times are seconds since 1970."""

    model_config = ConfigDict(strict=True)

    aud: str
    iss: str
    sub: str
    exp: int
    iat: int
    auth_time: int
    firebase: SignIn = SignIn()


class Tokens(Protocol):
    """Reads an ID token."""

    async def claims(self, token: str) -> Mapping[str, Any]:
        """Those of a token that Firebase made, whatever for. Raises Unauthorized, KeysUnavailable."""


class Signed:
    """Of the service: each is signed with one of the `keys`, which are certificates."""

    def __init__(self, keys: Keys[str]) -> None:
        self._keys = keys

    async def claims(self, token: str) -> Mapping[str, Any]:
        name = key_id(token, _KIND)
        certificate = await self._keys.find(name)
        if certificate is None:
            raise Unauthorized("the token is signed with a key that nobody has published; send a fresh one")
        try:
            found: Mapping[str, Any] = google.auth.jwt.decode(
                token, certs={name: certificate}, clock_skew_in_seconds=SKEW
            )
        except Exception:  # its words hold the token's
            raise Unauthorized("the token has expired, or its signature does not hold; send a fresh one") from None
        return found


class Unsigned:
    """Of the Firebase emulator: anybody can write them, and no other ones count."""

    async def claims(self, token: str) -> Mapping[str, Any]:
        if header(token, _KIND).get("alg") != "none" or not token.endswith("."):
            raise Unauthorized("expected an ID token of the Firebase emulator, which is not signed")
        found: Mapping[str, Any] = google.auth.jwt.decode(token, verify=False)
        return found


class Firebase:
    """Lets in the users of `project`. `clock` is in ms."""

    def __init__(self, project: str, tokens: Tokens, users: Users, clock: Callable[[], int]) -> None:
        self._project, self._tokens, self._users, self._clock = project, tokens, users, clock

    async def verify(self, headers: Mapping[str, str]) -> Principal:
        return caller(await self._tokens.claims(bearer(headers)), self._project, self._clock())

    async def stands(self, principal: Principal) -> bool:
        return await self._users.stand(principal)


def caller(claims: Mapping[str, Any], project: str, now: int) -> Principal:
    """The user whose token says so at `now` (ms). Raises Unauthorized."""
    try:
        token = Claims.model_validate(claims)
    except ValidationError:
        raise Unauthorized(f"expected {_KIND}") from None
    if (token.aud, token.iss) != (project, f"https://securetoken.google.com/{project}"):
        raise Unauthorized("the token is of another project")
    if token.firebase.tenant is not None:
        raise Unauthorized("the token is of a tenant's user; only users of the project itself are let in")
    if now > (token.exp + SKEW) * 1000:
        raise Unauthorized("the token has expired; send a fresh one")
    if now < (max(token.iat, token.auth_time) - SKEW) * 1000:
        raise Unauthorized("the token is of a time to come")
    return Principal(token.sub, token.exp * 1000, token.auth_time * 1000)


def certificates(document: Mapping[str, str]) -> Mapping[str, str]:
    """X.509 certificates in PEM, by the ids of their keys. Raises ValueError."""
    for certificate in document.values():
        google.auth.crypt.RSAVerifier.from_string(certificate)
    if not document:
        raise ValueError("there are no certificates")
    return dict(document)


def firebase(
    project: str,
    http: httpx.AsyncClient,
    clock: Callable[[], int],
    *,
    keys: str = CERTIFICATES,
    lookup: str = LOOKUP,
) -> Firebase:
    """The verifier of `firebase:PROJECT`, by the certificates at `keys`. Users are looked up at `lookup`, with the
    account that this process runs as. `clock` is in ms."""
    users = Users(project, http, _account(default_credentials(SCOPES), clock), lookup)
    return Firebase(project, Signed(Keys(keys, certificates, http, clock)), users, clock)


def emulated(project: str, http: httpx.AsyncClient, clock: Callable[[], int], host: str) -> Firebase:
    """The same for the emulator at `host`, HOST:PORT."""
    users = Users(project, http, _account(Owner(), clock), f"http://{host}/identitytoolkit.googleapis.com")
    return Firebase(project, Unsigned(), users, clock)


def _account(source: Source, clock: Callable[[], int]) -> Credential:
    return Credential("firebase users", Shared("firebase users", source, clock), None)
