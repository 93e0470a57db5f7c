"""What a turn asks of a person. Asking holds nothing: once nothing else of the turn is at work, it is suspended."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Literal

from legato.events import (
    ApprovalRequested,
    ApprovalResolved,
    CredentialRequired,
    CredentialSupplied,
    CredentialWithdrawn,
    Payload,
)
from legato.journal import Decision
from legato.turn import Approval, TurnState

EXPIRY: Final = "expiry"
"""Who decided when nobody did in time."""

Question = ApprovalRequested | CredentialRequired
Reason = Literal["approval", "credential"]


class Questions:
    """The open questions of one turn, by `request`. `state` has those that its journal knows already."""

    def __init__(self, state: TurnState, decisions: Mapping[str, Decision]) -> None:
        self._asked = {approval.request: approval for approval in state.approvals}
        self._known = {asked.request: asked.expires_at for asked in state.waits_for}
        self._credentials = {
            asked.name: CredentialRequired(name=asked.name, reason=asked.reason, expires_at=asked.expires_at)
            for asked in state.credentials
        }
        self._decisions = dict(decisions)
        self._open: dict[str, list[asyncio.Future[Decision]]] = {}
        self._new: dict[str, Question] = {}
        self._put: dict[str, Question] = {}

    @property
    def open(self) -> bool:
        """Somebody waits for a person, and nobody has an answer to go on with."""
        answered = [each.done() for waiting in self._open.values() for each in waiting if not each.cancelled()]
        return bool(answered) and not any(answered)

    @property
    def calls(self) -> set[str]:
        """Those whose doubt, or approval, was asked about and is not settled."""
        return {question.call for question in self._put.values() if isinstance(question, ApprovalRequested)}

    @property
    def reason(self) -> Reason:
        """What a turn waits for that has nothing else to do."""
        asks = any(isinstance(question, ApprovalRequested) for question in self._put.values())
        return "approval" if asks else "credential"

    def taken_up(self, now: int) -> bool:
        """Each question that is answered or has expired was put again: a turn at rest with one would resume at once."""
        credentials = {question.request for question in self._credentials.values()}
        left = {request: at for request, at in self._known.items() if request not in self._put.keys() | credentials}
        return not any(request in self._decisions or expires_at <= now for request, expires_at in left.items())

    def settled(self, now: int) -> list[Payload]:
        """What becomes of credentials that are here, or are not in time, and that no call waits for: one that had asked
        may be in doubt by now."""
        left = [question for question in self._credentials.values() if question.request not in self._put]
        made = [(question, self._decisions.get(question.request)) for question in left]
        expired = Decision(False, EXPIRY, None, now)
        return [resolved(each, is_made or expired) for each, is_made in made if is_made or each.expires_at <= now]

    @property
    def new(self) -> list[Question]:
        """Those that nobody knows of before the turn's suspension tells."""
        return list(self._new.values())

    def of(self, call: str, kind: str) -> Approval | None:
        """The newest question of this kind that the journal knows about a call."""
        return next((a for a in reversed(self._asked.values()) if a.call == call and a.kind == kind), None)

    def credential(self, name: str) -> CredentialRequired | None:
        """The open question for a credential: who else needs it waits for the same answer."""
        return self._credentials.get(name)

    def next_request(self, call: str) -> str:
        """A name for one more question about a call: an answer to an earlier one is none to it."""
        return f"{call}-{sum(asked.call == call for asked in self._asked.values()) + 1}"

    def expired(self, request: str, now: int) -> bool:
        """Nobody has answered in time, as far as is known here."""
        return self._known.get(request, now + 1) <= now and request not in self._decisions

    def put(self, question: Question) -> asyncio.Future[Decision]:
        """The answer: there already where the question is decided, by one that waited for the same even resolved."""
        answer: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        known = question.request in self._known
        if decided := self._decisions.get(question.request):
            answer.set_result(decided)
            if not known:
                return answer
        elif not known:
            self._new[question.request] = question
        self._open.setdefault(question.request, []).append(answer)
        self._put[question.request] = question
        if isinstance(question, CredentialRequired):
            self._credentials[question.name] = question
        return answer

    def is_open(self, question: Question) -> bool:
        return question.request in self._known or question.request in self._put

    def close(self, question: Question, decision: Decision) -> None:
        """It is resolved, as the journal knows by now: one more about the same needs an answer of its own."""
        for each in (self._open, self._put, self._known):
            each.pop(question.request, None)
        if isinstance(question, CredentialRequired):
            self._credentials.pop(question.name, None)
            return
        asked = Approval(question.request, question.call, question.kind, question.prompt, question.expires_at)
        self._asked[question.request] = replace(asked, approved=decision.approved, by=decision.by, note=decision.note)

    def decide(self, decisions: Mapping[str, Decision]) -> None:
        """Takes up what persons have decided. Only the first decision of each counts."""
        for request, decision in decisions.items():
            self._decisions.setdefault(request, decision)
            for answer in self._open.get(request, ()):
                if not answer.done():
                    answer.set_result(self._decisions[request])


def resolved(question: Question, decision: Decision) -> Payload:
    """What the journal says of a question that is decided."""
    if isinstance(question, CredentialRequired):
        kind = CredentialSupplied if decision.approved else CredentialWithdrawn
        return kind(name=question.name)
    return ApprovalResolved(request=question.request, approved=decision.approved, by=decision.by, note=decision.note)
