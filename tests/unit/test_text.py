"""Halves of surrogate pairs, in chunks and in JSON."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.text import NESTING, Surrogates, clean, clean_json

HALVES = st.characters(categories=["Cs"])
TEXT = st.text(st.one_of(st.characters(), HALVES, st.sampled_from("😀\ud83d\ude00a")), max_size=12)


def utf16(text: str) -> list[str]:
    """The UTF-16 code units of `text`, each as a character of its own: the finest split there can be."""
    units = text.encode("utf-16-le", "surrogatepass")
    return [units[at : at + 2].decode("utf-16-le", "surrogatepass") for at in range(0, len(units), 2)]


@given(st.text(max_size=12))
def test_text_without_halves_comes_through_any_split_as_it_was(text: str) -> None:
    held = Surrogates()
    assert "".join(held.feed(unit) for unit in utf16(text)) + held.end() == text


@given(st.lists(TEXT, max_size=6))
def test_chunks_say_what_the_whole_says_and_are_always_utf8(chunks: list[str]) -> None:
    held = Surrogates()
    said = [held.feed(chunk) for chunk in chunks] + [held.end()]
    assert "".join(said) == clean("".join(chunks))
    assert all(part.encode() is not None for part in said)


def test_an_unpaired_half_becomes_the_replacement_character() -> None:
    assert clean("a\ud83db\ude00c\ud83d") == "a\ufffdb\ufffdc\ufffd"
    assert clean_json({"\ud83d": ["\ude00", 1.5, None, True]}) == {"\ufffd": ["\ufffd", 1.5, None, True]}


def test_a_high_half_waits_for_its_other_half() -> None:
    held = Surrogates()
    assert [held.feed("a\ud83d"), held.feed(""), held.feed("\ude00b"), held.end()] == ["a", "", "😀b", ""]


def test_nothing_is_said_again_after_the_end() -> None:
    held = Surrogates()
    assert [held.feed("\ud83d"), held.end(), held.end(), held.feed("a")] == ["", "\ufffd", "", "a"]


def nested(levels: int) -> Any:
    return [nested(levels - 1)] if levels else 1


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (math.nan, "nan is not JSON"),
        ([b"x"], "b'x' is not JSON"),
        ({1: 2}, "{1: 2} is not JSON"),
        ({"a": (1,)}, "(1,) is not JSON"),
        (nested(NESTING + 1), "nested deeper than 100 levels"),
        (nested(900), "nested deeper than 100 levels"),
    ],
)
def test_what_no_journal_can_hold_is_refused(value: object, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        clean_json(value)


def test_the_deepest_nesting_allowed_comes_through() -> None:
    assert clean_json(nested(NESTING)) == nested(NESTING)
