"""What is sealed is read with any of the keys, at its place, and nowhere else."""

from __future__ import annotations

from base64 import b64decode, b64encode

import pytest

from legato.vault import Vault

OLD, NEW = b"o" * 32, b"n" * 32
PLACE = ("ann", "s1", "t1", "mail")
SECRET = "corréct horse"


def test_what_is_sealed_is_read_at_its_place() -> None:
    vault = Vault([NEW])
    assert vault.open(PLACE, vault.seal(PLACE, SECRET)) == SECRET


def test_the_same_is_never_sealed_the_same_way_and_nothing_of_it_shows() -> None:
    sealed = {Vault([NEW]).seal(PLACE, SECRET) for _ in range(3)}
    assert len(sealed) == 3
    assert not any(SECRET.encode() in b64decode(each) for each in sealed)


@pytest.mark.parametrize(
    "place", [("bob", "s1", "t1", "mail"), ("ann", "s1t1", "", "mail"), ("ann", "s1", "t1"), ("ann", "s1", "t1", "m")]
)
def test_a_copy_at_another_place_is_read_by_nobody(place: tuple[str, ...]) -> None:
    vault = Vault([NEW])
    assert vault.open(place, vault.seal(PLACE, SECRET)) is None


def test_the_first_key_seals_and_all_read() -> None:
    old, both, new = Vault([OLD]), Vault([NEW, OLD]), Vault([NEW])
    assert both.open(PLACE, old.seal(PLACE, SECRET)) == SECRET
    assert new.open(PLACE, both.seal(PLACE, SECRET)) == SECRET
    assert old.open(PLACE, both.seal(PLACE, SECRET)) is None


@pytest.mark.parametrize("at", [0, 12, -1])
def test_a_changed_byte_is_seen(at: int) -> None:
    vault = Vault([NEW])
    stored = bytearray(b64decode(vault.seal(PLACE, SECRET)))
    stored[at] ^= 1
    assert vault.open(PLACE, b64encode(stored).decode()) is None


@pytest.mark.parametrize("stored", ["", "AAAA", "no base64!", "A" * 40])
def test_what_was_never_sealed_is_read_as_nothing(stored: str) -> None:
    assert Vault([NEW]).open(PLACE, stored) is None
