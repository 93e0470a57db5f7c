"""What a running call is to its tool, and what becomes of it."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from pydantic import JsonValue
from pydantic_core import to_json

from legato.credentials import Credential, Shared, unknown
from legato.errors import LegatoError
from legato.events import ErrorInfo
from legato.text import brief, clean_json

Report = Callable[[str | None, float | None], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended: `content` when `ok`, else `error`. `unfinished`: it was given up, and may still be at work.
    `note` is what it left for its agent alone."""

    ok: bool
    content: JsonValue = None
    error: ErrorInfo | None = None
    unfinished: bool = False
    note: JsonValue = None

    @classmethod
    def failed(cls, code: str, message: str) -> Outcome:
        return cls(False, error=ErrorInfo(code=brief(str(code)), message=brief(str(message))))


class ToolContext:
    """One running call, for the tool that asks for it with a keyword-only `turn: ToolContext`.

    `key` is the idempotency key `{session}/{turn}/{call}`: hand it to what the tool calls. `progress` is told, in the
    event loop, what the tool reports; `cancelled` says whether the turn is; `credentials` gives what keeps the token of
    that name, or raises ToolFailed.
    """

    def __init__(
        self,
        key: str,
        progress: Report | None = None,
        cancelled: Callable[[], bool] | None = None,
        credentials: Callable[[str], Shared] | None = None,
    ) -> None:
        self.key = key
        self._credentials = credentials
        self._report = progress
        self._turn_cancelled = cancelled
        self._given_up = False
        self._note: JsonValue = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def cancelled(self) -> bool:
        """The call is given up or its turn is cancelled: a tool in a thread looks here, since nothing can stop it."""
        return self._given_up or (self._turn_cancelled is not None and self._turn_cancelled())

    def give_up(self) -> None:
        self._given_up = True

    def progress(self, message: str | None = None, fraction: float | None = None) -> None:
        """Shows how far the call is, `fraction` from 0 to 1. From any thread; after the call's end it does nothing."""
        text = None if message is None else brief(str(message))
        part = None if fraction is None or math.isnan(fraction) else min(1.0, max(0.0, float(fraction)))
        if self._loop is None:
            return
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._deliver, text, part)

    def credentials(self, name: str) -> Credential:
        """The credential of that name, valid whenever it is asked for. From any thread. Raises ToolFailed
        (`credential_unknown`)."""
        if self._credentials is None:
            raise unknown(name)
        return Credential(name, self._credentials(name), self._loop)

    def note(self, value: JsonValue) -> None:
        """Leaves `value` for the agent alone (`Outcome.note`), recorded with the call's end: no client is told it."""
        self._note = value

    def noted(self, outcome: Outcome, most: int) -> Outcome:
        """The outcome with the note that was left, which has `most` bytes of JSON."""
        if self._note is None:
            return outcome
        try:
            note = clean_json(self._note)
        except ValueError as wrong:
            return Outcome.failed("bad_result", f"its note is recorded as JSON: {wrong}")
        size = len(to_json(note))
        if size > most:
            return Outcome.failed("result_too_large", f"its note is {size} bytes of JSON, at most {most} fit")
        return replace(outcome, note=note)

    def open(self) -> None:
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        self._loop = None

    def _deliver(self, message: str | None, fraction: float | None) -> None:
        if self._loop is None or self._report is None:
            return
        with contextlib.suppress(LegatoError):  # a turn that is over says so to whoever awaits something of it
            self._report(message, fraction)
