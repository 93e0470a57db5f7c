"""The turn that ADK runs in this task, for what it calls: its models and its tools."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, get_args

from legato.agents import Turn
from legato.events import Effect
from legato.tools import Allow, Reconcile, bad_names


@dataclass(frozen=True, slots=True)
class Rule:
    """What a crash may do to a tool of ADK, as `legato.tool` has it: its `effect`, its `timeout` in seconds, and who
    tells what became of a `once` call in doubt; who says whether it may be called at all; and the names of the
    `credentials` that it asks for."""

    effect: Effect = "once"
    timeout: float = 30
    reconcile: Reconcile | None = None
    allow: Allow | None = None
    credentials: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.effect not in get_args(Effect):
            raise TypeError(f"Rule: effect is {self.effect!r}, expected one of {', '.join(get_args(Effect))}")
        if not 0 < self.timeout < math.inf:
            raise TypeError(f"Rule: timeout is {self.timeout!r}, expected seconds above 0")
        if self.reconcile is not None and self.effect != "once":
            raise TypeError("Rule: only a tool with effect='once' has a reconcile")
        if self.allow is not None and not callable(self.allow):
            raise TypeError(f"Rule: allow is {self.allow!r}, expected a function")
        if problem := bad_names(self.credentials):
            raise TypeError(f"Rule: {problem}")


def step_name(said: str) -> str:
    """`said` as the name of a step, which is bounded; agents may be nested deep."""
    if len(said.encode()) <= NAME_BYTES:
        return said
    return f"{said[:NAME_CHARS]} {sha256(said.encode()).hexdigest()}"


NAME_BYTES: Final = 300
NAME_CHARS: Final = 40


@dataclass(frozen=True, slots=True)
class Asking:
    """The agent that is about to ask its model: the name of its steps, and whether what the model says is what is
    said, with nobody between who could change it."""

    step: str = "model"
    aloud: bool = False


@dataclass(slots=True)
class Entered:
    """One turn as it is run now; `usage` sums up what its models have counted."""

    turn: Turn
    rules: Mapping[str, Rule]
    silence: float
    usage: Counter[str] = field(default_factory=Counter)


ENTERED: Final[ContextVar[Entered | None]] = ContextVar("the turn that ADK runs", default=None)
ASKING: Final = ContextVar("the agent that is about to ask its model", default=Asking())  # noqa: B039 - it is frozen
WITHIN: Final = ContextVar("the calls of agents used as tools that this one runs in", default="")
