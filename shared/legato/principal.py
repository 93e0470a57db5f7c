"""Who calls."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_UID: Final = re.compile(r"(?!\.{1,2}\Z)(?!__.*__\Z)[^/\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{1,128}")


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller: sessions live under `uid`. `expires_at`: how long it may read on what it opened (ms since 1970); None
    is for as long as it likes. `since`: when it signed in (ms since 1970), where that is known."""

    uid: str
    expires_at: int | None = None
    since: int | None = None

    def expired(self, now: int) -> bool:
        return self.expires_at is not None and self.expires_at <= now


def names_a_place(uid: str) -> bool:
    """Whether sessions can live under it: 1 to 128 characters, none of them a slash, a control character, a line break
    or half of a pair, and not what Firestore keeps for itself (its limits of document ids).

    A journal would write those otherwise; firestore.rules would then take one user's place for another's.
    """
    return _UID.fullmatch(uid) is not None
