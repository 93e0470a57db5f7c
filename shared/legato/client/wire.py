"""The requests of the wire contract over httpx, and what their answers mean. No decisions."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

import httpx

from legato import errors, sse
from legato.errors import LegatoError
from legato.events import ID_PATTERN

Token = str | Callable[[bool], Awaitable[str]]
"""A bearer token, or where to get one: called before every request, with True when the last one no longer serves."""

JSON: Final = {"Accept": "application/json"}
STREAM: Final = {"Accept": sse.MEDIA_TYPE, "Accept-Encoding": "identity", "Cache-Control": "no-store"}


class RequestRefused(LegatoError):
    """The server refused a request; `status` is HTTP's, `code` the problem's, `pause` the seconds it asks to wait."""

    def __init__(self, status: int, code: str, message: str, pause: float | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.pause = status, code, pause


_KINDS: Final[tuple[type[LegatoError], ...]] = (
    errors.NotFound, errors.Unauthorized, errors.TurnGone, errors.TurnConflict, errors.AlreadyDecided, errors.TooLarge,
    errors.InputTooLarge,
)  # fmt: skip
_PROBLEMS: Final = {kind.code: kind for kind in _KINDS}


class Wire:
    """Builds requests under `base_url` with the caller's token. Answers are httpx's."""

    def __init__(self, base_url: str, token: Token, http: httpx.AsyncClient) -> None:
        self._base, self._token, self._http = base_url.rstrip("/"), token, http

    async def open(
        self, method: str, path: str, *, silence: float, fresh: bool = False, **request: Any
    ) -> httpx.Response:
        """The answer with its body unread: the caller closes it. Raises httpx.TransportError, httpx.ReadTimeout after
        `silence` seconds without a byte."""
        headers = {"Authorization": f"Bearer {await self._bearer(fresh)}", **request.pop("headers", {})}
        timeout = httpx.Timeout(10.0, read=silence)
        built = self._http.build_request(method, self._base + path, headers=headers, timeout=timeout, **request)
        return await self._http.send(built, stream=True)

    @property
    def renews(self) -> bool:
        """There is another token to be had."""
        return not isinstance(self._token, str)

    async def ask(self, method: str, path: str, *, silence: float, fresh: bool = False, **request: Any) -> Any:
        """The JSON of a whole answer, None for an empty one. Raises LegatoError when refused, after one fresh token."""
        response = await self.open(method, path, silence=silence, headers=JSON, fresh=fresh, **request)
        if response.status_code == 401:
            await response.aclose()
            response = await self.open(method, path, silence=silence, headers=JSON, fresh=True, **request)
        try:
            await response.aread()
        finally:
            await response.aclose()
        if response.is_success:
            return response.json() if response.content else None
        raise problem(response)

    async def _bearer(self, fresh: bool) -> str:
        return self._token if isinstance(self._token, str) else await self._token(fresh)


def session_path(session: str) -> str:
    """Raises Invalid when `session` cannot be the name of one."""
    return f"/v1/sessions/{checked('session', session)}"


def checked(path: str, value: str) -> str:
    if not re.fullmatch(ID_PATTERN, value):
        raise errors.Invalid(path, f"{value!r} is no id: expected {ID_PATTERN}")
    return value


def problem(response: httpx.Response) -> LegatoError:
    """The error that a read answer stands for (RFC 9457); one without a problem's JSON keeps its status."""
    try:
        fields = dict(response.json())
    except (ValueError, TypeError):
        fields = {}
    code, text = str(fields.get("code", "")), str(fields.get("detail") or fields.get("title") or "")
    if code == errors.SessionBusy.code:
        return errors.SessionBusy(str(fields.get("turn", "")))
    if code == errors.Invalid.code:
        return errors.Invalid(str(fields.get("path", "")), text)
    if code in _PROBLEMS:
        return _PROBLEMS[code](text)
    status = response.status_code
    return RequestRefused(status, code or "http", text or f"HTTP {status}", retry_after(response))


def retry_after(response: httpx.Response) -> float | None:
    """Seconds of the `Retry-After` header; None where it is absent or a date."""
    value = response.headers.get("retry-after", "")
    return float(value) if re.fullmatch(r"[0-9]{1,6}", value) else None
