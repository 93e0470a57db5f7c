"""The engine under everything that can go wrong at once: its rules hold in every seed."""

from __future__ import annotations

import pytest

from simulation.run import run

SEEDS = 2000
BLOCK = 100


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_every_rule_holds_in_every_seed(first: int) -> None:
    for seed in range(first, first + BLOCK):
        watch = run(seed)
        assert not watch.broken, f"seed {seed}: {watch.broken[0]}\n{watch.trace()}"


def test_one_seed_gives_one_journal_byte_for_byte() -> None:
    for seed in range(20):
        once, again = run(seed), run(seed)
        assert (once.journal, once.trace()) == (again.journal, again.trace())
