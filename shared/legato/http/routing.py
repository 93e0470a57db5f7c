"""Which request is whose, and what the one that answers it is given."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

from legato.gateway import Gateway
from legato.http import inputs
from legato.http.inputs import Model
from legato.http.message import Answer, Request
from legato.http.openapi import Operation
from legato.http.problems import Unserved
from legato.http.seat import Seat
from legato.journal import SessionKey
from legato.principal import Principal
from legato.settings import Settings


@dataclass(frozen=True, slots=True)
class Call:
    """One request whose route and caller are known; `ids` are those of its path, by name."""

    gateway: Gateway
    settings: Settings
    request: Request
    principal: Principal
    ids: Mapping[str, str]
    operation: Operation
    seat: Seat

    @property
    def key(self) -> SessionKey:
        return SessionKey(self.principal.uid, self.ids["session"])

    def linger(self) -> None:
        """Before anything has begun, by a request whose answer takes its time. Raises NoRoom, TooManyStreams."""
        self.seat.take(self.gateway.quota, self.principal.uid)

    def query(self) -> dict[str, str]:
        return inputs.query(self.request.query, frozenset(self.operation.query))

    def accepted(self, *offers: str) -> str:
        """The media type to answer with, of `offers` or of all that the operation has."""
        return inputs.accepted(self.request.headers.get("accept", ""), offers or self.operation.offers)

    def body(self, model: type[Model]) -> Model:
        optional = self.operation.body_optional
        return inputs.document(self.request, self.settings.body_bytes, model, optional=optional)


Handler = Callable[[Call], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Route:
    """A path with `{ids}` and a method; none is served that is not described."""

    method: str
    template: str
    handler: Handler
    operation: Operation
    private: bool = True
    path: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        path = re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", self.template)
        object.__setattr__(self, "path", re.compile(path))


def find(routes: Iterable[Route], request: Request) -> tuple[Route, Mapping[str, str]]:
    """The route of `request`, and the ids in its path. Raises Unserved (404, 405)."""
    found = [(route, match) for route in routes if (match := route.path.fullmatch(request.path))]
    if not found:
        raise Unserved(404, "unknown_path", "there is nothing at this path")
    for route, match in found:
        if route.method == request.method:
            return route, match.groupdict()
    allow = ", ".join(route.method for route, _ in found)
    raise Unserved(405, "method_not_allowed", f"this path takes {allow}", {"Allow": allow})
