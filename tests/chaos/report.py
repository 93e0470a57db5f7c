"""The figures of a run of the chaos, as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from chaos.lives import Life


class Figures(NamedTuple):
    """What came of one journal's runs. `lost` names turns that reached no end."""

    store: str
    lives: Sequence[Life]
    lost: Sequence[str]
    struck: Counter[str]
    broken: dict[str, list[str]]

    def rows(self) -> list[tuple[str, str]]:
        pauses = sorted(life.pause for life in self.lives) or [0.0]
        calls = Counter(call.rsplit("/", 1)[1] for life in self.lives for call in life.entered)
        return [
            ("runs", str(len(self.lives) + len(self.lost))),
            ("completed", str(sum(life.output is not None for life in self.lives))),
            *((f"faults: {kind}", str(count)) for kind, count in sorted(self.struck.items())),
            ("takeovers", str(sum(life.takeovers for life in self.lives))),
            ("tools entered", str(calls.total())),
            ("transfers done twice", str(sum(len(life.paid) - len(set(life.paid)) for life in self.lives))),
            ("words lost", str(sum(life.words_lost for life in self.lives))),
            (
                "longest pause a client saw, p50 / p95 / max",
                " / ".join(f"{share(pauses, p):.1f} s" for p in (0.5, 0.95, 1)),
            ),
            ("rules broken", str(len(self.broken))),
        ]


def share(ordered: Sequence[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def table(figures: Figures) -> str:
    lines = [f"| {figures.store} | |", "|---|---|", *(f"| {name} | {figure} |" for name, figure in figures.rows())]
    return "\n".join(lines)
