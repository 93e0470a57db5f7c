"""The laptop's key: made once, kept beside the journal, for its user alone."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from legato.dev.keys import kept_key, key_file
from legato.settings import keys_of


def test_a_key_is_made_once_and_only_its_user_may_read_it(tmp_path: Path) -> None:
    file = tmp_path / "below" / "journal.sqlite.key"
    made = kept_key(file)
    assert len(keys_of(made)) == 1
    assert kept_key(file) == made
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_every_journal_has_a_key_of_its_own(tmp_path: Path) -> None:
    assert kept_key(tmp_path / "one.key") != kept_key(tmp_path / "two.key")


@pytest.mark.parametrize(
    ("journal", "file"),
    [
        ("sqlite:///.legato/journal.sqlite", ".legato/journal.sqlite.key"),
        ("sqlite:////srv/a%20b.sqlite", "/srv/a b.sqlite.key"),
        ("firestore://project/(default)", ".legato/credentials.key"),
    ],
)
def test_a_key_is_kept_beside_the_file_of_the_journal(journal: str, file: str) -> None:
    assert key_file(journal) == Path(file)
