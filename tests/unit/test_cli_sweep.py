"""`legato sweep` where it cannot sweep; `e2e/test_sweep.py` is about where it can."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from legato.cli import main

MISSING = "sqlite:////nowhere/journal.sqlite"
WRONG = {
    "LEGATO_SWEEP_TURNS='0'": (MISSING, {"LEGATO_SWEEP_TURNS": "0"}),
    "LEGATO_SWEEP_SECONDS='3600'": (MISSING, {"LEGATO_SWEEP_SECONDS": "3600"}),
    "LEGATO_JOURNAL='postgres://db'": ("postgres://db", {}),
    "there is no such file": (MISSING, {}),
}


@pytest.mark.parametrize("said", WRONG)
def test_what_stands_in_the_way_of_a_sweep_is_named(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, env = WRONG[said]
    monkeypatch.setenv("LEGATO_JOURNAL", journal)
    answer = CliRunner(env=env).invoke(main, ["sweep"])
    assert answer.exit_code == 2
    assert said in answer.output


def test_a_journal_that_refuses_a_sweep_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEGATO_JOURNAL", f"sqlite:///{tmp_path}")
    answer = CliRunner().invoke(main, ["sweep"])
    assert answer.exit_code == 1
    assert f"legato: {tmp_path}: " in answer.output
