"""A turn's input as a model takes it: text, or text with images and files, in no vendor's words. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError
from pydantic_core import to_json

from legato.errors import Refused

MediaType = Annotated[str, Field(pattern=r"^[a-z]+/[A-Za-z0-9.+-]+$")]


def _base64(text: str) -> str:
    base64.b64decode(text, validate=True)
    return text


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Text(_Part):
    text: str


class Data(_Part):
    """Bytes of an image or another file, in base64."""

    data: Annotated[str, Field(min_length=1), AfterValidator(_base64)]
    media_type: MediaType


class Reference(_Part):
    """A file that the model's service reads by itself."""

    uri: Annotated[str, Field(pattern=r"^(gs|https)://\S+$")]
    media_type: MediaType


Part = Text | Data | Reference
_KINDS: Final[dict[str, TypeAdapter[Part]]] = {
    "text": TypeAdapter(Text),
    "data": TypeAdapter(Data),
    "uri": TypeAdapter(Reference),
}


def parts_of(content: JsonValue) -> list[Part]:
    """The parts of an input: a string is text, `{"parts": [...]}` is its parts, any other JSON is told as text.

    A part is a string, `{"text"}`, `{"data", "media_type"}` or `{"uri", "media_type"}`. Raises Refused (`bad_input`)
    with the part's place and what was expected.
    """
    if isinstance(content, str):
        return [Text(text=content)]
    if isinstance(content, dict) and "parts" in content:
        return _listed(content, content["parts"])
    return [Text(text=to_json(content).decode())]


def _listed(content: Mapping[str, JsonValue], parts: object) -> list[Part]:
    if len(content) > 1 or not isinstance(parts, list) or not parts:
        raise Refused("bad_input", "the input: expected nothing but `parts`, a list of one part or more")
    return [part_of(number, part) for number, part in enumerate(parts)]


def part_of(number: int, part: object) -> Part:
    """The part `number` of an input. Raises Refused (`bad_input`)."""
    if isinstance(part, str):
        return Text(text=part)
    kind = next((name for name in _KINDS if isinstance(part, dict) and name in part), None)
    if kind is None:
        expected = "a string, {text}, {data, media_type} or {uri, media_type}"
        raise Refused("bad_input", f"input.parts[{number}]: expected {expected}")
    try:
        return _KINDS[kind].validate_python(part)
    except ValidationError as wrong:
        said = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in wrong.errors())
        raise Refused("bad_input", f"input.parts[{number}]: {said}") from None
