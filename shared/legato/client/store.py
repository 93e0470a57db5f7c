"""What a client keeps on disk so that `kill -9` costs it nothing: one file a session, replaced whole."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from legato.turn import SessionState, restore, snapshot


@dataclass(frozen=True, slots=True)
class Sent:
    """A turn as it is sent, again and again under the same id, until its first event is seen. `body` is the JSON."""

    turn: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Saved:
    """Cursor and state as one value; `sent`, written before it is sent, is the turn whose end is not seen yet."""

    state: SessionState
    sent: Sent | None = None


class FileStore:
    """A directory with one JSON file for each session. Every write is whole or not at all."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)

    def load(self, session: str) -> Saved | None:
        """None where nothing usable is stored; the server then sends a snapshot."""
        try:
            fields = json.loads(self._path(session).read_bytes())
            sent = Sent(**fields["sent"]) if fields["sent"] else None
            return Saved(restore(fields["snapshot"]), sent)
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def save(self, session: str, saved: Saved) -> None:
        """Blocks until the disk has it. Raises OSError, the old file untouched."""
        sent = {"turn": saved.sent.turn, "body": saved.sent.body} if saved.sent else None
        text = json.dumps({"snapshot": snapshot(saved.state), "sent": sent})
        self._directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=self._directory, prefix=f".{session}.", delete=False) as file:
            try:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
                os.replace(file.name, self._path(session))
            except BaseException:
                os.unlink(file.name)
                raise

    def check(self) -> None:
        """Raises OSError where nothing can be stored."""
        self._directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self._directory):
            pass

    def forget(self, session: str) -> None:
        self._path(session).unlink(missing_ok=True)

    def _path(self, session: str) -> Path:
        return self._directory / f"{session}.json"
