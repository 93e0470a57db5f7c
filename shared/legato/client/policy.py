"""What a client does next: pure decisions over how the last request ended.

Rules of this file:
- A turn is shown as completed, interrupted or failed because its own terminal event says so; a turn that cannot be
  reached is `reconnecting`, then, after `give_up` seconds without contact, `interrupted` with the action `resume`.
- Pauses are exponential with full jitter. The first event of a stream resets them, and nothing else does.
- A turn that waits for a person is looked at every `look` seconds. After a decision that was made here its stream is
  asked for at once, and a few times more while the turn has not gone on.
- A gap breaks no line: the events before the client's own turn are asked for at once, but not twice without news.
- No clock, no randomness, no I/O: `now` is in seconds of any steady clock, `chance` is from [0, 1).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from legato import turn

Status = Literal["connecting", "streaming", "reconnecting", "waiting", "completed", "interrupted", "failed"]
Action = Literal["resume", "retry"]
"""`resume` the same turn; or `retry`: its session no longer knows it, send a new one with `retry_of`."""

AT_ONCE: Final = frozenset({"draining", "deadline", "auth"})
LATER: Final = frozenset({408, 425, 429})
EXPECTED: Final = 3
"""How often a turn that was decided on is reached for before it is one that waits as any other."""
ALIVE: Final = 5.0
"""Seconds a stream must have lived to count as contact when it brought no event."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. `silence`: without a byte for so long a stream is broken. `first`, `most`: the bounds of a pause.
    `look`: between looks at a waiting turn. `give_up`: without contact. `wait`: what a long poll asks for."""

    silence: float = 25.0
    first: float = 1.0
    most: float = 30.0
    look: float = 30.0
    give_up: float = 300.0
    wait: int = 20


def pause(attempts: int, timing: Timing, chance: float, asked: float | None = None) -> float:
    """Seconds before the next attempt after `attempts` in vain; no less than the server asked for."""
    window = min(timing.most, timing.first * 2.0 ** min(attempts, 30))
    return max(window * chance, asked or 0.0)


def passing(code: int) -> bool:
    """Whether the same request may be answered later. A redirect is passing, too: it is the sign-in page of the
    network, not the service."""
    return code in LATER or code >= 500 or 300 <= code < 400


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one request ended; `gap`: with an event that does not follow the state. `turn` is the turn's status by then
    (None: unknown), `moved`: it brought news, `lived`: seconds from its first byte to its last, of a whole answer from
    its request on, `pause`: seconds that
    the server asks to wait."""

    kind: Literal["read", "closed", "broke", "gap", "silent", "over", "refused"]
    turn: turn.Status | None = None
    moved: bool = False
    lived: float = 0.0
    reason: str = ""
    code: int = 0
    pause: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The next request and when. `look` reads the snapshot, `connect` the events; `refuse` raises the refusal."""

    do: Literal["connect", "look", "stop", "refuse"]
    status: Status
    delay: float = 0.0
    fresh_token: bool = False
    action: Action | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """What a client remembers of its attempts. `contact` is the time of the last one that reached the turn."""

    contact: float
    attempts: int = 0
    silences: int = 0
    refreshed: bool = False
    looked: bool = False
    decided: bool = False

    @property
    def polls(self) -> bool:
        """Two answers silent from their opening on: a hop on the way holds streams back, so ask for whole answers."""
        return self.silences >= 2

    def after(self, outcome: Outcome, timing: Timing, now: float, chance: float) -> tuple[Link, Plan]:
        link = self._noting(outcome, now)
        if outcome.turn in turn.ENDED:
            return link, Plan("stop", outcome.turn)
        if outcome.kind == "refused":
            return link._refused(outcome, timing, now, chance)
        if outcome.kind == "over":
            return link._over()
        if outcome.kind == "gap" and link.attempts == 0:
            return replace(link, attempts=1), Plan("connect", outcome.turn or "streaming")
        if outcome.turn == "waiting" or outcome.reason == "suspended":
            return link._wait(timing, chance)
        if outcome.kind == "read":
            return link._read(outcome, timing, now, chance)
        if link.attempts == 0 and outcome.reason in AT_ONCE:
            at_once = Plan("connect", "reconnecting", outcome.pause or 0.0, fresh_token=outcome.reason == "auth")
            return replace(link, attempts=1), at_once
        return link._backoff(outcome, timing, now, chance)

    def hurry(self) -> tuple[Link, Plan]:
        """A decision was made here, or a cancel: the turn is about to go on."""
        return replace(self, attempts=0, decided=True), Plan("connect", "waiting")

    def _noting(self, outcome: Outcome, now: float) -> Link:
        reached = outcome.moved or outcome.kind == "read" or outcome.lived >= ALIVE
        return replace(
            self,
            contact=now if reached else self.contact,
            attempts=0 if outcome.moved else self.attempts,
            silences=self._silences(outcome),
            refreshed=self.refreshed and not reached,
            decided=self.decided and not outcome.moved,
        )

    def _silences(self, outcome: Outcome) -> int:
        if self.polls:
            return self.silences
        if outcome.kind == "silent" and outcome.lived < ALIVE:
            return self.silences + (not outcome.moved)
        return 0 if outcome.moved or outcome.lived else self.silences

    def _refused(self, outcome: Outcome, timing: Timing, now: float, chance: float) -> tuple[Link, Plan]:
        if outcome.code == 401 and not self.refreshed:
            return replace(self, refreshed=True), Plan("connect", "reconnecting", fresh_token=True)
        if outcome.code == 401:
            return self, Plan("stop", "interrupted", action="resume")
        if outcome.code in {404, 410}:
            return self, Plan("stop", "interrupted", action="retry")
        if passing(outcome.code):
            return self._backoff(outcome, timing, now, chance)
        return self, Plan("refuse", "failed")

    def _wait(self, timing: Timing, chance: float) -> tuple[Link, Plan]:
        if self.decided and self.attempts < EXPECTED:
            again = Plan("connect", "waiting", pause(self.attempts, timing, chance))
            return replace(self, attempts=self.attempts + 1), again
        return replace(self, decided=False), Plan("look", "waiting", timing.look)

    def _over(self) -> tuple[Link, Plan]:
        """The server says the turn is over and the state does not know how: one look tells, or it is gone."""
        if self.looked:
            return self, Plan("stop", "interrupted", action="retry")
        return replace(self, looked=True), Plan("look", "reconnecting")

    def _read(self, outcome: Outcome, timing: Timing, now: float, chance: float) -> tuple[Link, Plan]:
        """A whole answer: ask for the next one, unless this one came back at once with nothing in it."""
        if outcome.moved or outcome.lived >= timing.first:
            return self, Plan("connect", "streaming")
        return self._backoff(outcome, timing, now, chance)

    def _backoff(self, outcome: Outcome, timing: Timing, now: float, chance: float) -> tuple[Link, Plan]:
        if now - self.contact >= timing.give_up:
            return self, Plan("stop", "interrupted", action="resume")
        delay = pause(self.attempts, timing, chance, outcome.pause)
        fresh = outcome.reason == "auth"
        return replace(self, attempts=self.attempts + 1), Plan("connect", "reconnecting", delay, fresh_token=fresh)
