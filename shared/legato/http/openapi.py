"""What every route takes and gives. Requests are read by it, and the OpenAPI document is made of it: it is said once.

Source: OpenAPI Specification 3.1.1.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Protocol

from pydantic import BaseModel, TypeAdapter

from legato import errors, sse
from legato.events import ID_PATTERN
from legato.http.problems import MEDIA_TYPE, status_of

Schema = Mapping[str, Any]
JSON: Final = "application/json"
ID: Final[Schema] = {"type": "string", "pattern": f"^{ID_PATTERN}$"}
_UNFORESEEN: Final = (errors.LegatoError, errors.SettingsError, errors.Invalid, errors.Draining)
_PRIVATE: Final = (errors.Unauthorized, errors.KeysUnavailable, errors.JournalUnavailable, errors.JournalRejected)
_UNSERVED: Final = {406: "not_acceptable", 415: "unsupported_media_type"}


@dataclass(frozen=True, slots=True)
class Operation:
    """`answers` are those to a request that is granted: by status, the JSON, or None where nothing is sent.

    `stream` is the status of the answer that may be, and for `streams_first` is, a stream. `query` and `headers` are
    schemas by name. `raises` are the errors that it has beside those of every route.
    """

    summary: str
    answers: Mapping[int, type[BaseModel] | None]
    stream: int | None = None
    streams_first: bool = False
    query: Mapping[str, Schema] = field(default_factory=dict)
    headers: Mapping[str, Schema] = field(default_factory=dict)
    body: type[BaseModel] | None = None
    body_optional: bool = False
    raises: tuple[type[errors.LegatoError], ...] = ()

    @property
    def offers(self) -> tuple[str, ...]:
        """The media types that it answers with, the one without a wish first."""
        if self.stream is None:
            return (JSON,)
        return (sse.MEDIA_TYPE, JSON) if self.streams_first else (JSON, sse.MEDIA_TYPE)


class Described(Protocol):
    """What of a route is described."""

    @property
    def method(self) -> str: ...
    @property
    def template(self) -> str: ...
    @property
    def private(self) -> bool: ...
    @property
    def operation(self) -> Operation: ...


def document(routes: Iterable[Described]) -> dict[str, Any]:
    """The OpenAPI document of `routes`, as JSON. It says nothing of `405` and of paths that nobody serves."""
    routes = [*routes]
    refs, definitions = _schemas(route.operation for route in routes)
    paths: dict[str, dict[str, Any]] = defaultdict(dict)
    for route in routes:
        paths[route.template][route.method.lower()] = _described(route, refs)
    return {
        "openapi": "3.1.1",
        "info": {"title": "Legato", "version": "1", "description": "Turns that cannot be lost. See PROTOCOL.md."},
        "servers": [{"url": "."}],
        "paths": paths,
        "components": {
            "schemas": {**definitions, "Problem": _PROBLEM},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "appCheck": {"type": "apiKey", "in": "header", "name": "X-Firebase-AppCheck"},
            },
        },
    }


def _schemas(operations: Iterable[Operation]) -> tuple[Mapping[type[BaseModel], Schema], Schema]:
    """What stands for each type of a body or an answer, and what that refers to."""
    given = {kind for operation in operations for kind in (operation.body, *operation.answers.values()) if kind}
    found, shared = TypeAdapter.json_schemas(
        [(kind, "validation", TypeAdapter(kind)) for kind in sorted(given, key=lambda kind: kind.__name__)],
        ref_template="#/components/schemas/{model}",
    )
    return {kind: schema for (kind, _), schema in found.items()}, shared.get("$defs", {})


def _described(route: Described, refs: Mapping[type[BaseModel], Schema]) -> dict[str, Any]:
    operation = route.operation
    parameters = [_parameter("path", name, ID) for name in re.findall(r"{(\w+)}", route.template)]
    parameters += [_parameter("query", name, schema) for name, schema in operation.query.items()]
    parameters += [_parameter("header", name, schema) for name, schema in operation.headers.items()]
    described = {
        "summary": operation.summary,
        "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}{route.template}").strip("_"),
        "parameters": parameters,
        "security": [{"bearer": []}, {"bearer": [], "appCheck": []}] if route.private else [],
        "responses": _responses(_granted(operation, refs), _refused(route)),
    }
    if operation.body:
        content = {JSON: {"schema": refs[operation.body]}}
        described["requestBody"] = {"required": not operation.body_optional, "content": content}
    return described


def _parameter(where: str, name: str, schema: Schema) -> dict[str, Any]:
    return {"name": name, "in": where, "required": where == "path", "schema": schema}


def _responses(*contents: Mapping[int, Mapping[str, Schema]]) -> dict[str, Any]:
    """By status, from the schemas by status and media type."""
    merged: dict[int, dict[str, Any]] = defaultdict(dict)
    for content in contents:
        for status, schemas in content.items():
            merged[status] |= {kind: {"schema": schema} for kind, schema in schemas.items()}
    return {
        str(status): {"description": HTTPStatus(status).phrase, **({"content": content} if content else {})}
        for status, content in sorted(merged.items())
    }


def _granted(operation: Operation, refs: Mapping[type[BaseModel], Schema]) -> dict[int, dict[str, Schema]]:
    contents = {status: {JSON: refs[kind]} if kind else {} for status, kind in operation.answers.items()}
    if operation.stream:
        contents.setdefault(operation.stream, {})[sse.MEDIA_TYPE] = _STREAM
    return contents


def _refused(route: Described) -> dict[int, dict[str, Schema]]:
    codes: dict[int, set[str]] = defaultdict(set)
    for kind in (*_UNFORESEEN, *(_PRIVATE if route.private else ()), *_raised(route.operation)):
        codes[status_of(kind)].add(kind.code)
    for status in (406, *((415,) if route.operation.body else ())):
        codes[status].add(_UNSERVED[status])
    return {status: {MEDIA_TYPE: _problem(status, of)} for status, of in codes.items()}


def _raised(operation: Operation) -> tuple[type[errors.LegatoError], ...]:
    """What follows from what it takes and gives, and what it says itself."""
    large = (errors.TooLarge,) if operation.body else ()
    lingers = (errors.NoRoom, errors.TooManyStreams) if operation.stream else ()
    return (*large, *lingers, *operation.raises)


def _problem(status: int, codes: Iterable[str]) -> Schema:
    coded = {"properties": {"status": {"const": status}, "code": {"enum": sorted(codes)}}}
    return {"allOf": [{"$ref": "#/components/schemas/Problem"}, coded]}


_STREAM: Final[Schema] = {
    "description": "One frame of the stream: see PROTOCOL.md, 3.",
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "id": {"type": "string"},
        "event": {"type": "string"},
        "data": {"type": "string", "contentMediaType": JSON},
    },
}
_PROBLEM: Final[Schema] = {
    "description": "RFC 9457, with a stable code. `path` names the field that is wrong, `turn` the turn in the way.",
    "type": "object",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "path": {"type": "string"},
        "turn": {"type": "string"},
    },
}
