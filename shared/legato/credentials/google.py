"""Google's tokens, by google-auth: of a service account, of where the code runs, of somebody's consent."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC
from functools import partial
from os import PathLike
from typing import Any, Final

import google.auth
from google.auth.credentials import Credentials
from google.auth.exceptions import RefreshError
from google.auth.transport.requests import Request
from google.oauth2 import credentials as oauth
from google.oauth2.id_token import fetch_id_token_credentials
from google.oauth2.service_account import Credentials as ServiceAccount

from legato.credentials import UNAVAILABLE, Token
from legato.errors import ToolFailed
from legato.threads import Threads

_THREADS: Final = Threads(8, "legato-credential")
REQUEST_SECONDS: Final = 10.0
TOKEN_URI: Final = "https://oauth2.googleapis.com/token"  # noqa: S105 - it is where tokens come from


class GoogleSource:
    """The tokens of any credentials of google-auth. `make` gives them, in a thread, when a token is first asked for."""

    def __init__(self, make: Callable[[Request], Credentials]) -> None:
        self._make = make
        self._made: Credentials | None = None
        self._refreshing: Future[Token] | None = None

    async def fetch(self) -> Token:
        """Joins a refresh that is still at work: google-auth's objects are not made for two at a time."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = _THREADS.submit(self._refresh)
        return await asyncio.wrap_future(self._refreshing)

    def _refresh(self) -> Token:
        request = Request()
        bounded: Any = partial(request, timeout=REQUEST_SECONDS)
        try:
            self._made = self._made or self._make(bounded)
            self._made.refresh(bounded)
        except RefreshError as refused:
            raise ToolFailed(UNAVAILABLE, f"its source refuses: {_reason(refused)}") from None
        finally:
            request.session.close()
        return _token_of(self._made)


def service_account(key: str | PathLike[str] | Mapping[str, str], scopes: Sequence[str]) -> GoogleSource:
    """Access tokens of a service account. `key` is its JSON key, or the file that has it. Raises what google-auth does
    where it is none."""
    if isinstance(key, Mapping):
        account = ServiceAccount.from_service_account_info(key, scopes=scopes)
    else:
        account = ServiceAccount.from_service_account_file(key, scopes=scopes)
    return GoogleSource(lambda _: account)


def default_credentials(scopes: Sequence[str]) -> GoogleSource:
    """Access tokens of where the code runs: on Cloud Run those of the function's service account."""
    return GoogleSource(lambda request: google.auth.default(scopes=scopes, request=request)[0])


def id_token(audience: str) -> GoogleSource:
    """ID tokens of where the code runs for one service, such as `https://service-abc-ew.a.run.app`."""
    return GoogleSource(lambda request: fetch_id_token_credentials(audience, request=request))


def refresh_token(token: str, client_id: str, client_secret: str, token_uri: str = TOKEN_URI) -> GoogleSource:
    """Access tokens that a refresh token gives, which somebody's consent has left."""
    user = oauth.Credentials(
        None, refresh_token=token, token_uri=token_uri, client_id=client_id, client_secret=client_secret
    )
    return GoogleSource(lambda _: user)


def _token_of(credentials: Credentials) -> Token:
    """google-auth's `expiry` is UTC without saying so."""
    expiry = credentials.expiry
    at = None if expiry is None else int((expiry if expiry.tzinfo else expiry.replace(tzinfo=UTC)).timestamp() * 1000)
    return Token(str(credentials.token), at)


def _reason(refused: RefreshError) -> str:
    """The OAuth error code (RFC 6749, section 5.2); the words of a vendor may have a secret in them."""
    answer = refused.args[1] if len(refused.args) > 1 else None
    code = answer.get("error") if isinstance(answer, Mapping) else None
    return code if isinstance(code, str) and re.fullmatch("[a-z_]{1,64}", code) else type(refused).__name__
