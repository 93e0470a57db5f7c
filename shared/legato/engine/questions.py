"""What a turn asks of a person. Asking holds nothing: once nothing else of the turn is at work, it is suspended."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from legato.events import ApprovalRequested, ApprovalResolved
from legato.journal import Decision
from legato.turn import Approval

EXPIRY: Final = "expiry"
"""Who decided when nobody did in time."""


class Questions:
    """The open questions of one turn, by `request`. `asked` are those that its journal knows already."""

    def __init__(self, asked: Sequence[Approval], decisions: Mapping[str, Decision]) -> None:
        self._asked = {approval.request: approval for approval in asked}
        self._decisions = dict(decisions)
        self._open: dict[str, asyncio.Future[Decision]] = {}
        self._new: dict[str, ApprovalRequested] = {}
        self._put: dict[str, ApprovalRequested] = {}

    @property
    def open(self) -> bool:
        """Somebody waits for a person, and nobody has an answer to go on with."""
        answered = [answer.done() for answer in self._open.values() if not answer.cancelled()]
        return bool(answered) and not any(answered)

    @property
    def calls(self) -> set[str]:
        """Those that were asked about and are not settled."""
        return {question.call for question in self._put.values()}

    def taken_up(self, now: int) -> bool:
        """Each question that is answered or has expired was put again: a turn at rest with one would resume at once."""
        left = (asked for asked in self._asked.values() if asked.approved is None and asked.request not in self._put)
        return not any(asked.request in self._decisions or asked.expires_at <= now for asked in left)

    @property
    def new(self) -> list[ApprovalRequested]:
        """Those that nobody knows of before the turn's suspension tells."""
        return list(self._new.values())

    def of(self, call: str, kind: str) -> Approval | None:
        """The newest question of this kind that the journal knows about a call."""
        return next((a for a in reversed(self._asked.values()) if a.call == call and a.kind == kind), None)

    def next_request(self, call: str) -> str:
        """A name for one more question about a call: an answer to an earlier one is none to it."""
        return f"{call}-{sum(asked.call == call for asked in self._asked.values()) + 1}"

    def expired(self, request: str, now: int) -> bool:
        """Nobody has answered in time, as far as is known here."""
        known = self._asked.get(request)
        return known is not None and known.expires_at <= now and request not in self._decisions

    def put(self, question: ApprovalRequested) -> asyncio.Future[Decision]:
        """The answer: there already where the question is decided."""
        answer: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        if decided := self._decisions.get(question.request):
            answer.set_result(decided)
        elif question.request not in self._asked:
            self._new[question.request] = question
        self._open[question.request] = answer
        self._put[question.request] = question
        return answer

    def close(self, question: ApprovalRequested, decision: Decision) -> None:
        """It is resolved, as the journal knows by now: one more about the same call needs an answer of its own."""
        self._open.pop(question.request, None)
        self._put.pop(question.request, None)
        asked = Approval(question.request, question.call, question.kind, question.prompt, question.expires_at)
        self._asked[question.request] = replace(asked, approved=decision.approved, by=decision.by, note=decision.note)

    def decide(self, decisions: Mapping[str, Decision]) -> None:
        """Takes up what persons have decided. Only the first decision of each counts."""
        for request, decision in decisions.items():
            self._decisions.setdefault(request, decision)
            if (answer := self._open.get(request)) and not answer.done():
                answer.set_result(self._decisions[request])


def resolved(request: str, decision: Decision) -> ApprovalResolved:
    return ApprovalResolved(request=request, approved=decision.approved, by=decision.by, note=decision.note)
