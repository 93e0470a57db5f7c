"""The settings: read once, refused by name."""

from __future__ import annotations

import pytest

from legato.errors import SettingsError
from legato.settings import read_settings


def test_the_laptops_identity_is_refused_where_the_platform_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to ask for that."""
    assert read_settings().auth == "dev"
    monkeypatch.setenv("K_SERVICE", "gateway")
    with pytest.raises(SettingsError, match="K_SERVICE"):
        read_settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [("INPUT_BYTES", 262_145), ("TEXT_BYTES", 524_289), ("RESULT_BYTES", 2_097_153), ("TTL", 7199)],
)
def test_a_limit_that_no_store_can_keep_is_refused(name: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"LEGATO_{name}", str(value))
    with pytest.raises(SettingsError, match=f"LEGATO_{name}"):
        read_settings()
