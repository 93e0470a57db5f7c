"""What LEGATO_AGENT and LEGATO_CREDENTIALS may name."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from legato.app import load_agents, load_credentials
from legato.credentials import Token
from legato.errors import SettingsError


class Fixed:
    async def fetch(self) -> Token:
        return Token("t")


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the module `nobody` has."""
    module = ModuleType("nobody")
    monkeypatch.setitem(sys.modules, "nobody", module)
    return module.__dict__


def test_a_mapping_without_agents_is_a_wrong_setting(nobody: dict[str, Any]) -> None:
    nobody["agents"] = {}
    with pytest.raises(SettingsError, match="LEGATO_AGENT='nobody:agents': the mapping names no agent"):
        load_agents("nobody:agents")


async def test_a_mapping_of_sources_is_taken_by_name(nobody: dict[str, Any]) -> None:
    nobody["sources"] = {"mail": Fixed()}
    made = load_credentials("nobody:sources")
    assert (await made["mail"].token()).value == "t"


def test_there_are_no_credentials_where_none_are_named() -> None:
    assert load_credentials("") == {}


@pytest.mark.parametrize(
    ("sources", "wrong"),
    [
        ([Fixed()], "expected a mapping of names to sources, got list"),
        ({"mail": "secret"}, "'mail' is str, which has no async method fetch"),
        ({"mail": Fixed}, "'mail' is a class"),
    ],
)
def test_what_is_no_mapping_of_sources_is_a_wrong_setting_and_not_quoted(
    nobody: dict[str, Any], sources: Any, wrong: str
) -> None:
    nobody["sources"] = sources
    with pytest.raises(SettingsError, match="LEGATO_CREDENTIALS='nobody:sources'") as refused:
        load_credentials("nobody:sources")
    assert wrong in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_module_that_is_missing_is_a_wrong_setting() -> None:
    with pytest.raises(SettingsError, match="LEGATO_CREDENTIALS='nowhere:sources'"):
        load_credentials("nowhere:sources")
