"""What LEGATO_AGENT, LEGATO_CREDENTIALS and LEGATO_AUTH may name."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pytest

from legato.app import load_agents, load_credentials, load_verifier, open_verifier
from legato.auth import Developers
from legato.auth.app_check import AppCheck
from legato.auth.firebase import Firebase
from legato.credentials import Token
from legato.errors import SettingsError
from legato.principal import Principal
from legato.settings import Settings


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


class Anybody:
    async def verify(self, headers: Mapping[str, str]) -> Principal:
        return Principal("anybody")

    async def stands(self, principal: Principal) -> bool:
        return True


def made() -> Anybody:
    return Anybody()


@pytest.mark.parametrize("given", [Anybody(), Anybody, made], ids=["verifier", "class", "function"])
async def test_a_verifier_may_be_one_or_give_one(nobody: dict[str, Any], given: Any) -> None:
    nobody["verifier"] = given
    assert await load_verifier("nobody:verifier").verify({}) == Principal("anybody")


class Half:
    async def verify(self, headers: Mapping[str, str]) -> Principal:
        return Principal("anybody")


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        (Half, "Half has no async method stands"),
        (lambda secret: Anybody(), "missing 1 required positional argument"),
        ("secret", "str has no async method verify"),
        (None, "NoneType has no async method verify"),
    ],
)
def test_what_is_no_verifier_is_a_wrong_setting(nobody: dict[str, Any], given: Any, wrong: str) -> None:
    nobody["verifier"] = given
    with pytest.raises(SettingsError, match=f"LEGATO_AUTH='nobody:verifier': .*{wrong}"):
        load_verifier("nobody:verifier")


def test_a_verifier_that_is_missing_is_a_wrong_setting() -> None:
    with pytest.raises(SettingsError, match="LEGATO_AUTH='nowhere:verifier': No module named 'nowhere'"):
        load_verifier("nowhere:verifier")


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"auth": "dev"}, Developers),
        ({"auth": "firebase:p-one"}, Firebase),
        ({"auth": "firebase:p-one", "app_check": "123"}, AppCheck),
        ({"auth": "dev", "app_check": "123"}, AppCheck),
    ],
)
def test_callers_are_read_as_the_settings_say(settings: dict[str, Any], kind: type) -> None:
    assert type(open_verifier(Settings(**settings))) is kind
