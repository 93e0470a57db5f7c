"""What a tool's function takes and gives: its arguments and its result, described and checked by pydantic."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, Final, get_type_hints
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import from_json, to_jsonable_python

INJECTED: Final[Mapping[str, str]] = {"key": "str", "turn": "ToolContext"}
_TEXTUAL: Final = (date, time, timedelta, UUID, Decimal, Enum, PurePath)
_NESTING: Final = 16
"""Levels left for what wraps a result on its way: event, segment, turn document, snapshot."""


class BadArguments(Exception):
    """The arguments are not what the signature says."""


class BadResult(Exception):
    """The result is not what the signature says, or nothing that JSON can say."""


@dataclass(frozen=True, slots=True)
class Signature:
    """Of one function. `schema` is the JSON schema of the arguments that are the model's."""

    is_async: bool
    schema: dict[str, JsonValue]
    _signature: inspect.Signature
    _injected: frozenset[str]
    _arguments: type[BaseModel]
    _result: TypeAdapter[Any]

    @classmethod
    def of(cls, function: Callable[..., Any], name: str) -> Signature:
        """Reads a function. Raises TypeError when no model could call it, with the tool's name and what to do."""
        try:
            return cls._read(function, name)
        except (TypeError, ValueError, NameError, PydanticUserError) as wrong:
            raise TypeError(f"tool {name!r}: {wrong}") from None

    @classmethod
    def _read(cls, function: Callable[..., Any], name: str) -> Signature:
        entry = function if inspect.isroutine(inspect.unwrap(function)) else _entry(function)
        if inspect.isgeneratorfunction(entry) or inspect.isasyncgenfunction(entry):
            raise TypeError("a tool returns its result, it does not yield")
        signature = inspect.signature(function)
        hints = get_type_hints(entry, include_extras=True)
        injected = frozenset(p.name for p in signature.parameters.values() if _is_injected(p, hints))
        theirs = [p for p in signature.parameters.values() if p.name not in injected]
        arguments = _model(name, theirs, hints)
        schema = arguments.model_json_schema(schema_generator=_Schema)
        schema.pop("title", None)
        returns = hints.get("return", JsonValue)
        result = TypeAdapter(JsonValue if returns in (Any, object) else returns)
        return cls(inspect.iscoroutinefunction(entry), schema, signature, injected, arguments, result)

    def fits(self, arguments: JsonValue) -> bool:
        """The function can be called with these arguments."""
        try:
            self._accept(arguments)
        except BadArguments:
            return False
        return True

    def _accept(self, arguments: JsonValue) -> BaseModel:
        try:
            text = json.dumps(arguments, allow_nan=False, ensure_ascii=False).encode()
            return self._arguments.model_validate_json(text)
        except ValidationError as wrong:
            raise BadArguments(_reasons(wrong)) from None
        except Exception as wrong:
            raise BadArguments(f"{type(wrong).__name__}: {wrong}") from None

    def bind(self, arguments: JsonValue, injected: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What to call the function with. Raises BadArguments with the path of what is wrong and the reason."""
        bound = self._bound(arguments, {name: injected[name] for name in self._injected})
        return bound.args, bound.kwargs

    def values(self, arguments: JsonValue) -> dict[str, Any]:
        """What the function is called with, by parameter, but for what is injected. Raises BadArguments."""
        bound = self._bound(arguments, {})
        return {name: value for name, value in bound.arguments.items() if name not in self._injected}

    def _bound(self, arguments: JsonValue, injected: dict[str, Any]) -> inspect.BoundArguments:
        accepted = self._accept(arguments)
        fields = self._arguments.model_fields
        values = {str(fields[name].alias): getattr(accepted, name) for name in accepted.model_fields_set}
        bound = inspect.BoundArguments(self._signature, values | injected)
        bound.apply_defaults()
        return bound

    def content(self, value: object) -> tuple[JsonValue, int]:
        """The result as plain JSON of our own, and its size in bytes as an event has it. Raises BadResult."""
        if inspect.iscoroutine(value):
            value.close()
        try:
            valid = self._result.validate_python(value, strict=True)
            plain = self._result.dump_python(valid, warnings="error")
            text = json.dumps(plain, allow_nan=False, ensure_ascii=False, default=_textual, separators=(",", ":"))
            encoded = text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029").encode()
            from_json(b"[" * _NESTING + encoded + b"]" * _NESTING)
            return from_json(encoded), len(encoded)
        except ValidationError as wrong:
            raise BadResult(_reasons(wrong)) from None
        except Exception as wrong:
            raise BadResult(f"{type(wrong).__name__}: {wrong}") from None


class Unchecked(Signature):
    """Of an async function that takes all of the arguments as one dict, whatever they are, and `turn`: others have
    described them to the model, and check them."""

    @classmethod
    def whole(cls) -> Unchecked:
        nothing = create_model("Unchecked", __config__=ConfigDict(extra="allow"))
        return cls(True, {"type": "object"}, inspect.Signature(), frozenset(["turn"]), nothing, TypeAdapter(JsonValue))

    def bind(self, arguments: JsonValue, injected: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self._accept(arguments)
        return (arguments,), {name: injected[name] for name in self._injected}

    def values(self, arguments: JsonValue) -> dict[str, Any]:
        self._accept(arguments)
        return deepcopy(arguments) if isinstance(arguments, dict) else {}

    def content(self, value: object) -> tuple[JsonValue, int]:
        """Of whatever can be told as JSON."""
        try:
            plain = to_jsonable_python(value)
        except ValueError as wrong:
            raise BadResult(f"{type(wrong).__name__}: {wrong}") from None
        return super().content(plain)


def _entry(function: Any) -> Callable[..., Any]:
    inner = getattr(function, "func", None)
    return inner if callable(inner) else type(function).__call__


def _is_injected(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> bool:
    if parameter.kind is not parameter.KEYWORD_ONLY or parameter.name not in INJECTED:
        return False
    expected = INJECTED[parameter.name]
    if getattr(hints.get(parameter.name), "__name__", None) != expected:
        raise TypeError(f"the keyword-only parameter {parameter.name!r} is injected: annotate it {expected}")
    return True


def _model(name: str, parameters: list[inspect.Parameter], hints: Mapping[str, Any]) -> type[BaseModel]:
    """One field for each parameter, by alias, so that a parameter may bear any name."""
    fields: dict[str, Any] = {
        f"p{n}": (hints[p.name], _field(p)) for n, p in enumerate(parameters) if _described(p, hints)
    }
    return create_model(name, __config__=ConfigDict(extra="forbid"), **fields)


def _described(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> bool:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise TypeError(f"{parameter}: a model can only fill parameters that have names of their own")
    if parameter.name not in hints:
        raise TypeError(f"the parameter {parameter.name!r} has no annotation")
    if isinstance(parameter.default, FieldInfo):
        raise TypeError(f"the parameter {parameter.name!r} has Field(...) as its default: use Annotated")
    return True


def _field(parameter: inspect.Parameter) -> Any:
    if parameter.default is parameter.empty:
        return Field(alias=parameter.name)
    return Field(alias=parameter.name, default=parameter.default)


def _reasons(wrong: ValidationError) -> str:
    found = wrong.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{_path(error['loc'])}: {error['msg']}" if error["loc"] else error["msg"] for error in found[:10])


def _path(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location)


def _textual(value: object) -> JsonValue:
    if isinstance(value, _TEXTUAL):
        return to_jsonable_python(value)  # type: ignore[no-any-return]
    raise TypeError(f"{type(value).__name__} is not JSON")


class _Schema(GenerateJsonSchema):
    """A default that JSON cannot say is left out of the schema; it is the function's own business."""

    ignored_warning_kinds: set[JsonSchemaWarningKind] = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - as its base declares it
