"""What a request can ask for, whatever the framework that carries it: start, follow, look, cancel, decide, supply,
delete.

Rules of this file:
- A principal sees only what is below its own uid; everything else is simply not there.
- What changes a session is settled in the journal, never in this process alone: any instance may be asked.
- A request that goes away cancels nothing.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from hmac import compare_digest
from typing import Any

from pydantic_core import to_json

from legato.admission import Admissions
from legato.auth import Verifier
from legato.engine.drain import drain
from legato.engine.endings import answered
from legato.engine.fences import cancel_of, tombstone
from legato.engine.lead import Lead
from legato.engine.recovery import recover
from legato.engine.run import Engine, Started, StartTurn
from legato.engine.runtime import Runtime, answer
from legato.engine.supplies import NO_KEYS, Home, forgotten, names_in, opened, sealed
from legato.engine.view import view
from legato.errors import (
    AlreadyDecided,
    Conflict,
    CredentialsNotKept,
    Draining,
    InputTooLarge,
    NotFound,
    TurnGone,
    Unauthorized,
)
from legato.events import Cursor
from legato.follow import Reader
from legato.journal import Cancel, Commit, Decision, Head, Place, SessionKey, Standing, TurnRecord
from legato.principal import Principal
from legato.quota import Quota
from legato.stream import Looks, Stream, poll
from legato.turn import ENDED, snapshot

NONSENSE = Cursor(0, 0)
"""Stands for a cursor that cannot be read: it is answered with a snapshot."""


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision that counts. `again`: it had been made before; `waited_at`: the seq at which its turn waited."""

    record: TurnRecord
    again: bool
    waited_at: int | None


class Gateway:
    """One instance as requests see it. Its methods raise what `errors` lists for requests, above all
    JournalUnavailable."""

    def __init__(self, runtime: Runtime, engine: Engine, verifier: Verifier) -> None:
        self._runtime = runtime
        self._engine = engine
        self._looks = Looks()
        self._admissions = Admissions(runtime, verifier)
        self.quota = Quota(runtime.settings, runtime.clock)

    async def start(self, key: SessionKey, request: StartTurn) -> Started:
        """Begins a turn or finds it by its id: that is never refused for what its caller has here already.

        Raises SessionBusy, TurnConflict, Invalid, InputTooLarge, TooManyTurns, TurnsTooFast, Draining.
        """
        limit = self._runtime.settings.input_bytes
        size = len(to_json(request.input))
        if size > limit:
            raise InputTooLarge(f"input is {size} bytes of JSON; at most {limit} are taken")
        feeds = {other: live.writer.feed for other, live in self._engine.live.items()}
        running = [other for other, feed in feeds.items() if not feed.ended and feed.closed is None]
        refusal = self.quota.refusal(key, request.turn, running)
        if refusal and await answer(self._runtime.journal.turn, key, request.turn) is None:
            raise refusal
        with self.quota.starting(key, request.turn):
            started = await self._engine.start(key, request)
        if started.created:
            self.quota.began(key.uid)
        return started

    def attach(self, key: SessionKey, started: Started, caller: Principal | None = None) -> Stream:
        """The stream of a turn from its `turn.started` on. That of the request that began it leads."""
        live = self._engine.live.get(key) if started.created else None
        lead = live.writer.feed.lead if live and live.id == started.record.turn else None
        reader = self._reader(key, Cursor(0, started.record.first - 1), started.record.turn, exact=True)
        return self._stream(key, reader, caller, lead)

    async def follow(
        self,
        key: SessionKey,
        *,
        cursor: Cursor | None,
        start: bool,
        turn: str | None,
        caller: Principal | None = None,
    ) -> Stream | None:
        """The stream behind a cursor; None when it asks for a turn whose end the cursor has passed.

        Raises NotFound, TurnGone, Draining.
        """
        reader = await self._open(key, cursor, start, turn)
        return self._stream(key, reader, caller) if reader else None

    async def poll(
        self,
        key: SessionKey,
        *,
        cursor: Cursor | None,
        start: bool,
        turn: str | None,
        wait: float,
        caller: Principal | None = None,
    ) -> dict[str, Any] | None:
        """One answer of the long poll: `{events, snapshot?, cursor, more}`; otherwise like `follow`.

        Raises Unauthorized where the caller's token ended before there was one, or the caller stands no more.
        """
        reader = await self._open(key, cursor, start, turn)
        if reader is None:
            return None
        caller = caller or Principal(key.uid)
        with self._admissions.asked_about(caller) as fallen:
            answer = await poll(reader, min(wait, self._admissions.patience(caller)), self._looks)
        if fallen.is_set():
            raise Unauthorized("this caller may read no more; ask again with a fresh token")
        if wait and caller.expired(self._runtime.clock()):  # a process may have stood meanwhile
            raise Unauthorized("the token has expired since; ask again with a fresh one")
        return answer

    async def prolong(self, key: SessionKey, stream: str, caller: Principal) -> None:
        """Lets an open stream, on whichever instance, be read until the token ends that its caller brings here; one
        that is no fresher changes nothing.

        Raises NotFound where no such stream of the session has told of its token's end.
        """
        await self._admissions.prolong(key, stream, caller.expires_at)

    async def snapshot(self, key: SessionKey, before: int | None) -> dict[str, Any]:
        """The folded session with its newest 20 turns begun before seq `before`. Raises NotFound."""
        found = await answer(view, self._runtime, key, before)
        if found is None:
            raise NotFound(f"there is no session {key.session!r}")
        return {**snapshot(found.state), "before": found.before}

    async def sessions(self, uid: str, before: Place | None, limit: int) -> dict[str, Any]:
        """The caller's sessions, newest first: `{sessions: [...], before}`; `before` names the next page."""
        items = await answer(self._runtime.journal.sessions, uid, before, limit + 1)
        listed = [
            {
                "session": item.session,
                "turn": item.head.turn._asdict() if item.head.turn else None,
                "created_at": item.head.created_at,
                "updated_at": item.head.updated_at,
            }
            for item in items[:limit]
        ]
        return {"sessions": listed, "before": str(items[limit - 1].place) if len(items) > limit else None}

    async def cancel(self, key: SessionKey, turn: str, reason: str, by: str) -> bool:
        """Asks the turn's owner to stop; True when the turn had ended already.

        A turn that has not begun yet is cancelled when it does; one without an owner is taken over to be ended.
        Raises Draining.
        """
        self._refuse_when_leaving(key)
        record = await answer(self._runtime.journal.turn, key, turn)
        if record and record.status in ENDED:
            return True
        await self._engine.cancel(key, turn, reason, by)
        standing = await answer(self._runtime.journal.standing, key)
        if self._engine.needs_owner(standing):
            self._engine.adopt(key)
        return False

    async def decide(self, key: SessionKey, turn: str, request: str, approved: bool, note: str | None) -> Decided:
        """Answers a turn's question; the first answer counts. The turn is resumed here if it waited for it.

        Raises NotFound, TurnGone, AlreadyDecided, Draining.
        """
        self._refuse_when_leaving(key)
        while True:
            record = await self._record(key, turn)
            standing = await answer(self._runtime.journal.standing, key)
            decision = Decision(approved, key.uid, note, self._runtime.clock())
            made = await self._made(key, record, standing, request, decision.at)
            if again := made is not None:
                break
            with suppress(Conflict):
                await self._engine.decide(key, turn, request, decision, standing)
                break
        made = made or decision
        if made.approved != approved:
            raise AlreadyDecided(f"question {request!r} was {'approved' if made.approved else 'denied'} by {made.by}")
        return await self._gone_on(key, record, standing, again)

    async def supply(self, key: SessionKey, turn: str, name: str, value: str, expires_in: float | None) -> Decided:
        """Gives a turn the credential that it waits for, for `expires_in` seconds; until it is taken up the last one
        counts. The turn is resumed here if it waited for it.

        Raises NotFound, TurnGone, AlreadyDecided, CredentialsNotKept, Draining.
        """
        self._refuse_when_leaving(key)
        while True:
            record = await self._record(key, turn)
            standing = await answer(self._runtime.journal.standing, key)
            home = Home(key, turn, record.first)
            request = await self._required(record, standing, home, name, value)
            if again := request is None:
                break
            given = sealed(self._runtime, home, name, value, expires_in)
            decision = Decision(True, key.uid, None, self._runtime.clock())
            with suppress(Conflict):
                await self._engine.decide(key, turn, request, decision, standing, given)
                break
        return await self._gone_on(key, record, standing, again)

    async def _gone_on(self, key: SessionKey, record: TurnRecord, standing: Standing, again: bool) -> Decided:
        await self._engine.take_over(key)
        waited = standing.head and standing.head.turn and standing.head.turn.status == "waiting"
        return Decided(record, again, standing.seq if waited else None)

    async def _required(self, record: TurnRecord, standing: Standing, home: Home, name: str, value: str) -> str | None:
        """What the answer goes by; None where this value has been taken up. Raises NotFound, AlreadyDecided,
        CredentialsNotKept."""
        _refuse_when_over(record, standing)
        found = await answer(recover, self._runtime, home.key, record, standing.seq)
        asked = next((each for each in found.state.credentials if each.name == name), None)
        if asked is None and name not in found.credentials:
            _refuse_when_over(await self._record(home.key, home.turn), standing)  # what was kept may have gone with it
            raise NotFound(f"turn {record.turn!r} has asked for no credential {name!r}")
        if self._runtime.vault is None:
            raise CredentialsNotKept(f"credential {name!r} was not taken: {NO_KEYS}")
        made = answered(standing.control, record.turn).get(asked.request) if asked else None
        if asked and (made.approved if made else self._runtime.clock() < asked.expires_at):
            return asked.request
        given = opened(self._runtime, home, name, found.credentials.get(name))
        if asked is None and given and compare_digest(given.value.encode(), value.encode()):
            return None
        raise AlreadyDecided(f"credential {name!r} is asked for no more")

    async def _made(
        self, key: SessionKey, record: TurnRecord, standing: Standing, request: str, now: int
    ) -> Decision | None:
        """The decision that was made; None while the question is open. Raises NotFound, AlreadyDecided."""
        if made := answered(standing.control, record.turn).get(request):
            return made
        _refuse_when_over(record, standing)
        state = (await answer(recover, self._runtime, key, record, standing.seq)).state
        asked = next((approval for approval in state.approvals if approval.request == request), None)
        if asked is None:
            raise NotFound(f"turn {record.turn!r} has asked no question {request!r}")
        if asked.approved is not None:
            return Decision(asked.approved, asked.by or "", asked.note, now)
        if asked.expires_at <= now:
            raise AlreadyDecided(f"question {request!r} has expired")
        return None

    def follow_decided(
        self, key: SessionKey, decided: Decided, cursor: Cursor | None, caller: Principal | None = None
    ) -> Stream:
        """The stream of the turn that was decided on: behind `cursor`, else from its resumption on."""
        turn = decided.record.turn
        if cursor is None and decided.waited_at is not None:
            return self._stream(key, self._reader(key, Cursor(0, decided.waited_at), turn, exact=True), caller)
        return self._stream(key, self._reader(key, cursor, turn), caller)

    async def delete(self, key: SessionKey) -> None:
        """Fences the session, stops what runs in it and deletes all of it; its head stays as a tombstone."""
        while True:
            standing = await answer(self._runtime.journal.standing, key)
            if standing.head and standing.head.deleted:  # an earlier deletion may have been cut short
                await answer(self._runtime.journal.purge, key, standing.head)
            if standing.head is None or standing.head.deleted:
                raise NotFound(f"there is no session {key.session!r}")
            try:
                buried = await self._buried(key, standing, standing.head)
                committed = await answer(self._runtime.journal.commit, key, buried)
                break
            except Conflict:
                continue
        assert committed.head
        if turn := standing.head.turn:
            self._engine.cancel_here(key, turn.id, Cancel("the session was deleted", key.uid, self._runtime.clock()))
        await answer(self._runtime.journal.purge, key, committed.head)

    async def _buried(self, key: SessionKey, standing: Standing, head: Head) -> Commit:
        """What ends the session, and with a turn that is active the credentials that were kept for it."""
        buried = tombstone(self._runtime, standing, head)
        if head.turn is None:
            return buried
        texts = await answer(self._runtime.journal.private, key, head.turn.id, self._runtime.clock())
        return replace(buried, private=forgotten(head.turn.id, names_in(texts), standing.control))

    async def drain(self) -> None:
        """Lets go of everything before the process ends: see `engine.drain`.

        A stream is closed as `draining`: at once, but that of a turn that runs here once it ended or was handed back.
        """
        self._engine.draining = True
        self._looks.break_off()
        await drain(self._engine, self._runtime.settings.drain)
        self._looks.break_off()

    def close(self) -> None:
        """Asks about nobody any more."""
        self._admissions.close()

    def health(self) -> dict[str, Any]:
        """`status` is `ok`, or `draining` where no new turns are taken."""
        status = "draining" if self._engine.draining else "ok"
        return {"status": status, "instance": self._runtime.instance, "turns": len(self._engine.live)}

    async def _open(self, key: SessionKey, cursor: Cursor | None, start: bool, turn: str | None) -> Reader | None:
        self._refuse_when_leaving(key)
        if turn is None:
            standing = await answer(self._runtime.journal.standing, key, trust_head=True)
            if standing.head is None or standing.head.deleted:
                raise NotFound(f"there is no session {key.session!r}")
            return self._reader(key, Cursor(standing.epoch, 0) if start else cursor, None, exact=start)
        record = await self._record(key, turn)
        before = Cursor(0, record.first - 1)
        if start:
            return self._reader(key, before, turn, exact=True)
        if cursor and cursor.seq < before.seq:
            return self._reader(key, None, turn)
        if cursor and record.last is not None and cursor.seq >= record.last:
            return None if await self._exists(key, cursor) else self._reader(key, None, turn)
        return self._reader(key, cursor, turn)

    def _refuse_when_leaving(self, key: SessionKey) -> None:
        """This instance takes no turn over any more; what is asked of one here would be left lying."""
        if self._engine.leaves(key):
            raise Draining("this instance is about to end; ask again, another will answer")

    async def _record(self, key: SessionKey, turn: str) -> TurnRecord:
        record = await answer(self._runtime.journal.turn, key, turn)
        if record:
            return record
        standing = await answer(self._runtime.journal.standing, key)
        if standing.head is None or standing.head.deleted:
            raise NotFound(f"there is no session {key.session!r}")
        raise TurnGone(f"session {key.session!r} does not know turn {turn!r}; start a new one with retry_of")

    async def _exists(self, key: SessionKey, cursor: Cursor) -> bool:
        runtime = self._runtime
        held = await answer(runtime.journal.read, key, cursor.seq, runtime.clock(), 1)
        return bool(held) and held[0].first <= cursor.seq <= held[0].last and held[0].epoch == cursor.epoch

    def _reader(self, key: SessionKey, cursor: Cursor | None, turn: str | None, exact: bool = False) -> Reader:
        return Reader(self._runtime, self._engine, key, cursor, turn, exact)

    def _stream(self, key: SessionKey, reader: Reader, caller: Principal | None, lead: Lead | None = None) -> Stream:
        admission = self._admissions.of(key, caller)
        return Stream(self._runtime, key.session, reader, self._looks, admission, lead)


def _refuse_when_over(record: TurnRecord, standing: Standing) -> None:
    """Raises AlreadyDecided."""
    active = standing.head.turn if standing.head else None
    if record.status in ENDED or active is None or active.id != record.turn:
        raise AlreadyDecided(f"turn {record.turn!r} has ended; it asks nothing any more")
    if cancel_of(standing.control, record.turn):
        raise AlreadyDecided(f"turn {record.turn!r} is being cancelled; it asks nothing any more")
