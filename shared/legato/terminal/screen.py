"""A terminal, or a pipe, that turns are written to: running text, and lines of their own between it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rich.console import Console

from legato.events import Payload, TurnResumed
from legato.terminal.view import Kind, Piece, difference, in_words, printable
from legato.turn import TurnState

_MARKS: Final[dict[Kind, tuple[str, str]]] = {
    "call": ("→ ", "cyan"),
    "progress": ("… ", "dim"),
    "result": ("← ", "green"),
    "error": ("✗ ", "red"),
    "question": ("? ", "bold yellow"),
    "note": ("— ", "yellow"),
    "end": ("■ ", "red"),
}
_LOST: Final = frozenset({"lease_expired", "released"})
"""Why a turn is resumed that nobody has answered, cancelled or let expire."""
_RUNNING: Final[dict[Kind, str]] = {"text": "", "reasoning": "dim italic"}


class Screen:
    """Remembers whether a line is open, and which turn it has shown how far."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._open = False
        self._shown: TurnState | None = None

    def show(self, turn: TurnState) -> None:
        """Writes what of `turn` has not been written yet."""
        shown = self._shown if self._shown and self._shown.turn == turn.turn else None
        self._write(difference(shown, turn))
        self._shown = turn
        if turn.ended:
            self.end_line()

    def resumed(self, payload: Payload) -> None:
        """Says that the turn has another owner, if `payload` tells that its last one was lost."""
        if isinstance(payload, TurnResumed) and payload.reason in _LOST:
            self.line("↻ taken over by another instance", "yellow")

    def asked(self, turn: TurnState) -> None:
        self.line(f"> {in_words(turn.input)}", "bold")

    def line(self, text: str, style: str = "") -> None:
        self.end_line()
        self._console.out(printable(text), style=style, highlight=False)

    def end_line(self) -> None:
        if self._open:
            self._console.out("")
        self._open = False

    def prompt(self, text: str = "> ") -> None:
        self.end_line()
        self._console.out(text, style="bold", end="")
        self._open = True

    def entered(self) -> None:
        """The terminal has shown the line that was typed, and its end, by itself."""
        self._open = False

    def interrupted(self) -> None:
        """The terminal has shown `^C` by itself, and no end of the line."""
        self._open = True

    def _write(self, pieces: Iterable[Piece]) -> None:
        for kind, text in pieces:
            if kind in _RUNNING:
                self._console.out(printable(text), style=_RUNNING[kind], highlight=False, end="")
                self._open = not text.endswith("\n")
            else:
                mark, style = _MARKS[kind]
                self.line(mark + text, style)
