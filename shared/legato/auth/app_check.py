"""Callers by Firebase App Check: whoever calls, it is from an app of the project.

Source: Firebase, "Verify App Check tokens from a custom backend".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import httpx
import jwt

from legato.auth import Verifier
from legato.auth.keys import Keys
from legato.auth.tokens import SKEW, key_id
from legato.errors import Unauthorized
from legato.principal import Principal

KEY_SET: Final = "https://firebaseappcheck.googleapis.com/v1/jwks"
_KIND: Final = "an App Check token in the header X-Firebase-AppCheck"


class AppCheck:
    """Lets in those of `callers` who bring a token of an app of the project with that `number`."""

    def __init__(self, number: str, keys: Keys[jwt.PyJWK], callers: Verifier) -> None:
        self._number, self._keys, self._callers = number, keys, callers

    async def verify(self, headers: Mapping[str, str]) -> Principal:
        await self._attest(headers.get("x-firebase-appcheck", ""))
        return await self._callers.verify(headers)

    async def stands(self, principal: Principal) -> bool:
        return await self._callers.stands(principal)

    async def _attest(self, token: str) -> None:
        key = await self._keys.find(key_id(token, _KIND))
        if key is None or not self._attested(token, key):
            raise Unauthorized(
                "the App Check token has expired, is of another project or is not signed; send a fresh one"
            )

    def _attested(self, token: str, key: jwt.PyJWK) -> bool:
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=["RS256"],
                audience=f"projects/{self._number}",
                issuer=f"https://firebaseappcheck.googleapis.com/{self._number}",
                leeway=SKEW,
                options={"require": ["aud", "exp", "iat", "iss", "sub"]},
            )
        except Exception:  # a stranger wrote it: whatever the parser makes of it, it attests nothing
            return False
        return bool(claims["sub"])


def key_set(document: dict[str, Any]) -> Mapping[str, jwt.PyJWK]:
    """The keys of a JWKS that sign by RS256, by their ids. Raises PyJWKSetError, ValueError."""
    keys = jwt.PyJWKSet.from_dict(document).keys
    found = {key.key_id: key for key in keys if key.key_id and key.algorithm_name == "RS256"}
    if not found:
        raise ValueError("there are no keys for RS256")
    return found


def app_check(
    number: str, callers: Verifier, http: httpx.AsyncClient, clock: Callable[[], int], keys: str = KEY_SET
) -> AppCheck:
    """The verifier of `callers` who come from an app, by the key set at `keys`. `clock` is in ms."""
    return AppCheck(number, Keys(keys, key_set, http, clock), callers)
