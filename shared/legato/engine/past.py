"""What earlier owners of a turn have recorded: handed to the agent that is entered again, each piece once. Pure.

- A step is found by its name and occurrence (`model`, the second `model`), a call by its tool and arguments.
- Whoever asks for something else while pieces are left does not do what was done before: `agent_diverged`, no guess.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue, TypeAdapter
from pydantic_core import from_json, to_json, to_jsonable_python

from legato.engine.failures import Failure
from legato.errors import Refused
from legato.journal import COMMIT_BYTES
from legato.text import NESTING, brief, clean, clean_json
from legato.turn import ToolState, TurnState

DIVERGED: Final = "agent_diverged"
PREFIX: Final = "step."
NOTE: Final = "call."
NAME_BYTES: Final = 400
"""Of a step's name, so that with all that goes with it, and percent-encoded, it fits the id of a document."""
STEP_BYTES: Final = 2 * 1024 * 1024
"""A step's result has to fit a Commit beside the segment that goes with it."""
STEP_NESTING: Final = NESTING + 8
"""Levels of it: a model's answer holds the arguments of the calls that it asks for."""
SEALING_BYTES: Final = 64 * 1024
"""What a Commit takes for the names of its documents and whatever else is not counted."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A finished step: its number in the turn's events, and its result, or how it failed; or a call's step and note.
    `first` is the turn's first seq: the id of a deleted turn may have been used again."""

    first: int
    step: int
    result: JsonValue
    failure: Failure | None = None

    def given(self) -> JsonValue:
        """What an agent is given that is entered again. Raises what the step's work failed with."""
        if self.failure:
            raise self.failure.error()
        return self.result


_RECORDED: Final = TypeAdapter(Recorded)


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why a call that is not settled may have had its effect: its owner's lease ran out at `since`, in ms."""

    since: int


class Past:
    """`doubt` is None where the last owner let go of the turn by itself: then no `once` tool of it was running."""

    def __init__(
        self,
        state: TurnState,
        steps: Mapping[str, Recorded] | None = None,
        doubt: Doubt | None = None,
        notes: Mapping[str, JsonValue] | None = None,
    ) -> None:
        """`notes` are what settled calls have left for the agent alone, by call."""
        self.doubt = doubt
        self.notes = dict(notes or {})
        self.approvals = state.approvals
        self._steps = dict(steps or {})
        self._calls = list(state.tools)
        self._asked: Counter[str] = Counter()
        self._diverged: str | None = None
        self.unsettled_once = {c.call for c in self._calls if c.effect == "once" and c.status == "running"}
        self.numbers = {recorded.step for recorded in self._steps.values()} | {call.step for call in self._calls}
        self.front = max(self.numbers, default=0) + 1

    @property
    def left(self) -> bool:
        """Something recorded was not asked for yet: what the agent says meanwhile has been said."""
        return bool(self._steps or self._calls)

    def step(self, name: str) -> tuple[str, Recorded | None]:
        """The key of the step asked for, and what is recorded of it. Raises Refused (`bad_name`)."""
        if len(name.encode(errors="replace")) > NAME_BYTES or name != clean(name):
            said = f"turn.step({brief(name)!r}): expected a name of at most {NAME_BYTES} bytes of UTF-8"
            raise Refused("bad_name", said)
        self._asked[name] += 1
        key = f"{PREFIX}{name}.{self._asked[name]}"
        return key, self._steps.pop(key, None)

    def call(self, name: str, arguments: JsonValue) -> ToolState | None:
        """The recorded call of these arguments, settled or not."""
        wanted = _canonical(arguments)
        for found in self._calls:
            if found.name == name and _canonical(found.arguments) == wanted:
                self._calls.remove(found)
                return found
        return None

    def check(self) -> None:
        """Raises Refused (`agent_diverged`) when the agent went, or ended, another way than before."""
        if self._diverged is None and self.left:
            kept = [*self._steps, *(call.call for call in self._calls)]
            self._diverged = f"it ended without {kept[0]}, which is recorded"
        if self._diverged is not None:
            raise Refused(DIVERGED, f"entered again, the agent does not do what it did before: {self._diverged}")

    def refuse(self, what: str) -> None:
        """For what is not recorded: raises Refused (`agent_diverged`) while pieces that are recorded are left."""
        if self._diverged is None and self.left:
            self._diverged = f"it asks for {what}, which is not recorded"
        if self._diverged is not None:
            self.check()


def recorded(texts: Mapping[str, str], first: int) -> dict[str, Recorded]:
    """The steps among the private documents of the turn that began at `first`."""
    return dict(_among(texts, PREFIX, first))


def noted(texts: Mapping[str, str], first: int) -> dict[str, JsonValue]:
    """What calls of the turn that began at `first` have left for its agent, by call."""
    return {name.removeprefix(NOTE): found.result for name, found in _among(texts, NOTE, first)}


def _among(texts: Mapping[str, str], prefix: str, first: int) -> Iterator[tuple[str, Recorded]]:
    for name, text in texts.items():
        if name.startswith(prefix) and (found := _RECORDED.validate_json(text)).first == first:
            yield name, found


def text_of(recorded: Recorded) -> str:
    """The step, or a call's note, as a private document has it."""
    return _RECORDED.dump_json(recorded).decode()


def as_recorded(name: str, result: JsonValue) -> JsonValue:
    """The result after its way through JSON. Raises Refused (`bad_result`, `result_too_large`)."""
    try:
        text = to_json(clean_json(to_jsonable_python(result), STEP_NESTING))
    except ValueError as wrong:
        raise Refused("bad_result", f"turn.step({name!r}): its result is recorded as JSON: {wrong}") from None
    if len(text) > STEP_BYTES:
        what = f"its result is {len(text)} bytes of JSON, at most {STEP_BYTES} fit"
        raise Refused("result_too_large", f"turn.step({name!r}): {what}")
    recorded: JsonValue = from_json(text)
    return recorded


def room_beside(result: JsonValue) -> int:
    """The bytes of JSON that the calls a result asks for may take, so that all of it fits one Commit."""
    return COMMIT_BYTES - SEALING_BYTES - len(to_json(result))


def _canonical(arguments: JsonValue) -> bytes:
    return to_json(_sorted(arguments))


def _sorted(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(each) for each in value] if isinstance(value, list) else value
