"""The credentials that only a turn's user can give: how they are kept, and how its tools are given them.

Rules of this file:
- A value is readable inside a running call alone. What is stored of it is sealed, for its place and no other.
- What is kept goes with the turn: its terminal Commit deletes it.
- A value that has expired, was not taken, or cannot be opened any more is none: it has to be given again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pydantic import TypeAdapter

from legato.credentials import Shared, Token
from legato.engine.runtime import Runtime, persist
from legato.errors import ToolFailed
from legato.journal import Control, Private, SessionKey
from legato.tools import Tool

PREFIX: Final = "credential."
"""Of the private document's name; and, in `control`, of what the answer goes by."""
NO_KEYS: Final = "LEGATO_CREDENTIAL_KEYS is not set"
REJECTED: Final = "credential_rejected"
"""The code of a call whose credential was not taken: the next call that needs it asks for another one."""


@dataclass(frozen=True, slots=True)
class Supplied:
    """A value that was given; `expires_at` in ms."""

    value: str = field(repr=False)
    expires_at: int


@dataclass(frozen=True, slots=True)
class Kept:
    """What is stored of it: `sealed` is None once it was not taken. `first` is the turn's first seq: the id of a
    deleted turn may have been used again."""

    first: int
    sealed: str | None


_SUPPLIED: Final = TypeAdapter(Supplied)
_KEPT: Final = TypeAdapter(Kept)


@dataclass(frozen=True, slots=True)
class Home:
    """The turn to which what is kept belongs, and from where on in its session."""

    key: SessionKey
    turn: str
    first: int

    def of(self, name: str) -> tuple[str, ...]:
        return (*self.key, self.turn, str(self.first), name)


def kept(texts: Mapping[str, str], first: int) -> dict[str, Kept]:
    """What is kept, by name, among the private documents of the turn that began at `first`."""
    found = {name: _KEPT.validate_json(texts[f"{PREFIX}{name}"]) for name in names_in(texts)}
    return {name: each for name, each in found.items() if each.first == first}


def names_in(texts: Mapping[str, str]) -> list[str]:
    """The names of all credentials among the private documents of a turn."""
    return [name.removeprefix(PREFIX) for name in texts if name.startswith(PREFIX)]


def sealed(runtime: Runtime, home: Home, name: str, value: str, expires_in: float | None) -> Private:
    """The document that keeps `value`. It counts for `expires_in` seconds, for as long as a turn may wait and run at
    most, and is stored for as long after that as somebody may have to know that there was one."""
    assert runtime.vault
    now = runtime.clock()
    most = runtime.approval_ms + int(runtime.settings.turn_seconds * 1000)
    expires_at = now + (most if expires_in is None else min(most, int(expires_in * 1000)))
    text = _SUPPLIED.dump_json(Supplied(value, expires_at)).decode()
    return _document(home, name, runtime.vault.seal(home.of(name), text), now + most + 2 * runtime.ttl_ms)


def opened(runtime: Runtime, home: Home, name: str, each: Kept | None) -> Supplied | None:
    """The value that counts."""
    if each is None or each.sealed is None or runtime.vault is None:
        return None
    text = runtime.vault.open(home.of(name), each.sealed)
    supplied = None if text is None else _SUPPLIED.validate_json(text)
    return supplied if supplied and runtime.clock() < supplied.expires_at else None


def forgotten(turn: str, names: Iterable[str], control: Control | None) -> tuple[Private, ...]:
    """Deletes what is kept under `names`, and what nobody has taken up yet."""
    given = control.decisions.get(turn, {}) if control else {}
    marked = {request.split(".")[1] for request in given if request.startswith(PREFIX)}
    return tuple(Private(turn, f"{PREFIX}{name}", None, 0) for name in sorted(marked.union(names)))


def _document(home: Home, name: str, text: str | None, expires_at: int) -> Private:
    return Private(home.turn, f"{PREFIX}{name}", _KEPT.dump_json(Kept(home.first, text)).decode(), expires_at)


class Supplies:
    """What the user of one turn has given its tools. `kept` is what was stored when its owner took it over."""

    def __init__(self, runtime: Runtime, home: Home, kept: Mapping[str, Kept]) -> None:
        self._runtime = runtime
        self._home = home
        self._kept = dict(kept)
        self._refused: set[str] = set()

    @property
    def names(self) -> frozenset[str]:
        """Those that were given at any time, whether they still count or not."""
        return frozenset(self._kept)

    def of(self, tool: Tool) -> list[str]:
        """Those that only the user can give it."""
        return [name for name in tool.credentials if name not in self._runtime.credentials]

    def never_had(self, tool: Tool | None) -> bool:
        """It cannot have begun: it needs what nobody has given."""
        return tool is not None and not self.names.issuperset(self.of(tool))

    def value(self, name: str) -> Supplied | None:
        return opened(self._runtime, self._home, name, self._kept.get(name))

    async def read(self, name: str) -> None:
        """Takes up what has been given under this name meanwhile."""
        home = self._home
        texts = await persist(self._runtime.journal.private, home.key, home.turn, self._runtime.clock())
        found = kept(texts, home.first)
        if name in found:
            self._kept[name] = found[name]

    def given(self, tool: Tool) -> Given:
        """Those of the tool, as one call is given them."""
        return Given(self, self.of(tool), self._runtime.clock)

    def refuse(self, name: str) -> None:
        """It was not taken, and counts no more."""
        self._kept[name] = Kept(self._home.first, None)
        self._refused.add(name)

    def take_refused(self) -> tuple[Private, ...]:
        """What the journal has to know of that."""
        expires_at = self._runtime.clock() + self._runtime.retention_ms
        refused = tuple(_document(self._home, name, None, expires_at) for name in sorted(self._refused))
        self._refused.clear()
        return refused


class Given:
    """What one call is given of `supplies`, under these names."""

    def __init__(self, supplies: Supplies, names: Iterable[str], clock: Callable[[], int]) -> None:
        self._supplies = supplies
        self._sources = {name: _Once(supplies, name) for name in names}
        self._shared = {name: Shared(name, source, clock) for name, source in self._sources.items()}

    def get(self, name: str) -> Shared | None:
        return self._shared.get(name)

    def refuse(self) -> None:
        """What the call was shown was not taken; what it never asked for may still be."""
        for name, source in self._sources.items():
            if source.shown:
                self._supplies.refuse(name)


class _Once:
    """The source of a call's token: there is one, and no fresh one where that is not taken or has expired."""

    def __init__(self, supplies: Supplies, name: str) -> None:
        self._supplies, self._name = supplies, name
        self.shown = False

    async def fetch(self) -> Token:
        supplied = self._supplies.value(self._name)
        if self.shown or supplied is None:
            raise ToolFailed(REJECTED, f"credential {self._name!r} counts no more; its user has to give another one")
        self.shown = True
        return Token(supplied.value, supplied.expires_at)
