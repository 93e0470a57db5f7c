"""What LEGATO_AGENT may name."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from legato.app import load_agents
from legato.errors import SettingsError


def test_a_mapping_without_agents_is_a_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("nobody")
    module.__dict__["agents"] = {}
    monkeypatch.setitem(sys.modules, "nobody", module)
    with pytest.raises(SettingsError, match="LEGATO_AGENT='nobody:agents': the mapping names no agent"):
        load_agents("nobody:agents")
