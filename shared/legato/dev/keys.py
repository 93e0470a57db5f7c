"""The laptop's LEGATO_CREDENTIAL_KEYS: beside the journal, so that a turn which waits outlives its workers."""

from __future__ import annotations

import os
from base64 import b64encode
from pathlib import Path
from urllib.parse import unquote

from legato.settings import KEY_BYTES


def key_file(journal: str) -> Path:
    """Where the key of a LEGATO_JOURNAL is kept: beside the file, or here for one that is elsewhere."""
    path = journal.removeprefix("sqlite:///")
    return Path(".legato/credentials.key" if path == journal else f"{unquote(path)}.key")


def kept_key(file: Path) -> str:
    """The key of that file, which nobody else may read; made where there is none. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        made = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        return file.read_text()
    with os.fdopen(made, "w") as new:
        key = b64encode(os.urandom(KEY_BYTES)).decode()
        new.write(key)
    return key
