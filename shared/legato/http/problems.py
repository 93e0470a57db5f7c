"""The one place where an error becomes HTTP: RFC 9457 problems with a stable `code`."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from math import ceil
from typing import Final

from legato import errors
from legato.http.message import Answer, json_answer

MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER: Final = {"Retry-After": "1"}
_STATUS: Final[Mapping[type[errors.LegatoError], int]] = {
    errors.Invalid: 422,
    errors.Unauthorized: 401,
    errors.NotFound: 404,
    errors.TurnGone: 410,
    errors.TurnConflict: 409,
    errors.SessionBusy: 409,
    errors.AlreadyDecided: 409,
    errors.CredentialsNotKept: 409,
    errors.TooLarge: 413,
    errors.InputTooLarge: 413,
    errors.TooManyTurns: 429,
    errors.TooManyStreams: 429,
    errors.TurnsTooFast: 429,
    errors.Draining: 503,
    errors.NoRoom: 503,
    errors.JournalUnavailable: 503,
    errors.KeysUnavailable: 503,
}
_DETAIL: Final[Mapping[type[errors.LegatoError], str]] = {
    errors.JournalUnavailable: "the journal does not answer; nothing that was stored is lost, try again",
    errors.JournalRejected: "the journal refused to store this; the server's log says why",
}
_HEADERS: Final[Mapping[int, Mapping[str, str]]] = {
    401: {"WWW-Authenticate": "Bearer"},
    429: {"Retry-After": "5"},
    503: RETRY_AFTER,
}


class Unserved(errors.LegatoError):
    """HTTP itself says no: a path, a method or a media type that is not served."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.headers = status, code, headers or {}


def problem(error: Exception) -> Answer:
    """The answer to a request that ended with `error`; one that nobody raised on purpose says nothing of itself."""
    status = error.status if isinstance(error, Unserved) else status_of(type(error))
    code = error.code if isinstance(error, errors.LegatoError) else errors.LegatoError.code
    more = {name: getattr(error, name) for name in ("path", "turn") if hasattr(error, name) and status != 500}
    title = HTTPStatus(status).phrase
    fields = {"type": "about:blank", "title": title, "status": status, "detail": _detail(error, status), "code": code}
    headers = error.headers if isinstance(error, Unserved) else _later(error)
    return json_answer(status, {**fields, **more}, {**_HEADERS.get(status, {}), **headers}, kind=MEDIA_TYPE)


def _later(error: Exception) -> Mapping[str, str]:
    return {"Retry-After": str(ceil(error.retry_after))} if isinstance(error, errors.TurnsTooFast) else {}


def status_of(kind: type[Exception]) -> int:
    """The HTTP status of such errors: 500 for whatever is no answer to a request."""
    return next((status for base, status in _STATUS.items() if issubclass(kind, base)), 500)


def _detail(error: Exception, status: int) -> str:
    """What the client is told. The words of a store stay in the log: they name its files and projects."""
    told = next((text for kind, text in _DETAIL.items() if isinstance(error, kind)), None)
    if told or status == 500:
        return told or "the server could not handle this request"
    return str(error) or HTTPStatus(status).description
