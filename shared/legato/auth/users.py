"""Whether users of Firebase still stand. Source: Identity Toolkit, accounts.lookup; Firebase, "Manage sessions"."""

from __future__ import annotations

from typing import Final

import httpx
from pydantic import BaseModel, Field

from legato.credentials import Token
from legato.principal import Principal

LOOKUP: Final = "https://identitytoolkit.googleapis.com"
SCOPES: Final = ("https://www.googleapis.com/auth/identitytoolkit",)


class _User(BaseModel):
    """`valid_since`: tokens of whoever signed in before are revoked (seconds since 1970)."""

    uid: str = Field(alias="localId")
    disabled: bool = False
    valid_since: int = Field(0, alias="validSince")


class _Found(BaseModel):
    users: list[_User] = []


class Users:
    """Those of `project`, looked up at `url` by who may: `account`."""

    def __init__(self, project: str, http: httpx.AsyncClient, account: httpx.Auth, url: str = LOOKUP) -> None:
        self._http, self._account = http, account
        self._url = f"{url}/v1/projects/{project}/accounts:lookup"

    async def stand(self, principal: Principal) -> bool:
        """False for one who is disabled, deleted, or signed in before the tokens were revoked. Raises httpx.HTTPError,
        ToolFailed (of the account), ValueError."""
        answer = await self._http.post(self._url, json={"localId": [principal.uid]}, auth=self._account)
        found = _Found.model_validate_json(answer.raise_for_status().content)
        return any(_stands(user, principal) for user in found.users)


def _stands(user: _User, principal: Principal) -> bool:
    revoked = principal.since is not None and principal.since < user.valid_since * 1000
    return user.uid == principal.uid and not user.disabled and not revoked


class Owner:
    """The source of the only access token that the emulator takes."""

    async def fetch(self) -> Token:
        return Token("owner")
