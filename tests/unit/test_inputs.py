"""A turn's input as a model takes it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import JsonValue

from legato.errors import Refused
from legato.models.inputs import Data, Reference, Text, parts_of

PNG: Any = {"data": "iVBORw0KGgo=", "media_type": "image/png"}
PDF: Any = {"uri": "gs://bucket/a.pdf", "media_type": "application/pdf"}


def test_a_string_is_text() -> None:
    assert parts_of("hello") == [Text(text="hello")]


def test_parts_are_text_data_and_references() -> None:
    assert parts_of({"parts": ["a", {"text": "b"}, PNG, PDF]}) == [
        Text(text="a"),
        Text(text="b"),
        Data(**PNG),
        Reference(**PDF),
    ]


@pytest.mark.parametrize(("content", "text"), [({"a": 1}, '{"a":1}'), ([1], "[1]"), (None, "null"), (True, "true")])
def test_any_other_json_is_told_as_text(content: JsonValue, text: str) -> None:
    assert parts_of(content) == [Text(text=text)]


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ([], "the input"),
        ("text", "the input"),
        ([1], r"input\.parts\[0\]: expected a string"),
        (["a", {"image": "x"}], r"input\.parts\[1\]: expected a string"),
        ([{"text": 1}], r"parts\[0\]: text"),
        ([{**PNG, "data": "?"}], r"parts\[0\]: data"),
        ([{**PNG, "data": ""}], r"parts\[0\]: data"),
        ([{"data": "iVBORw0KGgo="}], r"parts\[0\]: media_type"),
        ([{**PDF, "uri": "file:///etc/passwd"}], r"parts\[0\]: uri"),
        ([{**PDF, "media_type": "pdf"}], r"parts\[0\]: media_type"),
        ([{**PDF, "text": "both"}], r"parts\[0\]: uri"),
    ],
)
def test_what_no_model_can_read_is_refused_with_its_place(wrong: Any, place: str) -> None:
    with pytest.raises(Refused, match=place) as refused:
        parts_of({"parts": wrong})
    assert refused.value.code == "bad_input"


def test_parts_stand_alone() -> None:
    with pytest.raises(Refused, match="nothing but `parts`"):
        parts_of({"parts": ["a"], "more": 1})
