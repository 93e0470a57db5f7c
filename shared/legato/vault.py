"""What only a user may know, as it is stored: encrypted with AES-256-GCM, and bound to the place where it belongs."""

from __future__ import annotations

import json
import os
from base64 import b64decode, b64encode
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONCE_BYTES: Final = 12


class Vault:
    """The first of `keys` (32 bytes each) encrypts, all of them decrypt: so a key is replaced by one put before it."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._ciphers = [AESGCM(key) for key in keys]

    def seal(self, place: Sequence[str], text: str) -> str:
        """`text` as it is stored at `place`; nowhere else it can be opened."""
        nonce = os.urandom(NONCE_BYTES)
        return b64encode(nonce + self._ciphers[0].encrypt(nonce, text.encode(), _named(place))).decode()

    def open(self, place: Sequence[str], sealed: str) -> str | None:
        """What was sealed at `place`; None where it was at another, under another key, or is not what was stored."""
        for cipher in self._ciphers:
            with suppress(InvalidTag, ValueError):
                stored = b64decode(sealed, validate=True)
                nonce, encrypted = stored[:NONCE_BYTES], stored[NONCE_BYTES:]
                return cipher.decrypt(nonce, encrypted, _named(place)).decode()
        return None


def _named(place: Sequence[str]) -> bytes:
    """Two places never have the same bytes."""
    return json.dumps(list(place)).encode()
