"""The settings: read once, refused by name."""

from __future__ import annotations

import pytest

from legato.errors import SettingsError
from legato.settings import keys_of, read_settings


def test_the_laptops_identity_is_refused_where_the_platform_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to ask for that."""
    assert read_settings().auth == "dev"
    monkeypatch.setenv("K_SERVICE", "gateway")
    with pytest.raises(SettingsError, match="K_SERVICE"):
        read_settings()


@pytest.mark.parametrize("auth", ["firebase:p-one", "ours:verifier"])
def test_the_emulators_tokens_are_refused_where_the_platform_runs_it(
    auth: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEGATO_AUTH", auth)
    monkeypatch.setenv("K_SERVICE", "gateway")
    assert read_settings().auth == auth
    monkeypatch.setenv("FIREBASE_AUTH_EMULATOR_HOST", "127.0.0.1:9099")
    with pytest.raises(SettingsError, match=r"FIREBASE_AUTH_EMULATOR_HOST: .* K_SERVICE"):
        read_settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [("INPUT_BYTES", 262_145), ("TEXT_BYTES", 524_289), ("RESULT_BYTES", 2_097_153), ("TTL", 7199)],
)
def test_a_limit_that_no_store_can_keep_is_refused(name: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"LEGATO_{name}", str(value))
    with pytest.raises(SettingsError, match=f"LEGATO_{name}"):
        read_settings()


@pytest.mark.parametrize("name", ["JOURNAL", "AUTH", "AGENT", "APP_CHECK"])
def test_a_bad_value_is_refused_with_what_was_expected_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"LEGATO_{name}", "what")
    with pytest.raises(SettingsError, match=f"^LEGATO_{name}='what': expected "):
        read_settings()


@pytest.mark.parametrize(
    ("name", "value", "other"),
    [
        ("FLUSH", "5", "PENDING_SECONDS"),
        ("FLUSH_BYTES", "262144", "PENDING_BYTES"),
        ("PING", "3300", "DEADLINE"),
        ("LEASE", "21600", "TURN_SECONDS"),
        ("HOLD_BACK_SECONDS", "21600", "TURN_SECONDS"),
        ("TURN_SECONDS", "43201", "TTL"),
        ("TTL", "43199", "TURN_SECONDS"),
        ("RETENTION", "21600", "TURN_SECONDS"),
        ("RETENTION", "86400", "APPROVAL"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_by_both_names(
    name: str, value: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"LEGATO_{name}", value)
    with pytest.raises(SettingsError, match="expected") as told:
        read_settings()
    assert f"LEGATO_{name}" in str(told.value)
    assert f"LEGATO_{other}" in str(told.value)


@pytest.mark.parametrize(
    ("slip", "meant"),
    [("LEGATO_FLSUH", "FLUSH"), ("LEGATO_TLT", "TTL"), ("legato_pings", "PING"), ("LEGATO_FEED_BYTE", "FEED_BYTES")],
)
def test_a_misspelt_setting_is_refused_with_the_one_that_was_meant(
    slip: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(slip, "1")
    with pytest.raises(SettingsError, match=f"{slip}: .* LEGATO_{meant}"):
        read_settings()


@pytest.mark.parametrize("name", ["LEGATO_DEMO_LEDGER", "LEGATO_REQUIRE", "LEGATO_EMULATOR", "LEGATO_URL", "FLSUH"])
def test_a_name_that_resembles_no_setting_is_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "x")
    assert read_settings()


@pytest.mark.parametrize("name", ["legato_flush", "LEGATO_FLUSH"])
def test_a_setting_is_read_in_either_case(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "0.25")
    assert read_settings().flush == 0.25


KEY = "a2V5IG9mIHRoZSB0ZXN0cywgMzIgYnl0ZXMgbG9uZyE="


@pytest.mark.parametrize("text", ["", KEY, f"{KEY}  {KEY}", "-_" * 21 + "A="])
def test_keys_are_taken_in_either_alphabet_of_base64_and_shown_to_nobody(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEGATO_CREDENTIAL_KEYS", text)
    settings = read_settings()
    assert len(keys_of(settings.credential_keys.get_secret_value())) == len(text.split())
    assert text == "" or text not in repr(settings) + str(settings.model_dump())


@pytest.mark.parametrize("text", ["secret", KEY[:-4], f"{KEY} secret", f"{KEY},{KEY}", "!" * 44, "s\u00e9cret"])
def test_a_key_that_is_none_is_refused_by_its_number_and_not_repeated(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEGATO_CREDENTIAL_KEYS", text)
    with pytest.raises(
        SettingsError, match=r"^LEGATO_CREDENTIAL_KEYS: expected keys of 32 bytes .*; number \d"
    ) as told:
        read_settings()
    assert not any(word[:6] in str(told.value) for word in text.split())
    assert told.value.__cause__ is None
