"""Looks at a simulated world while it runs: every segment as it is written, every tool as it is entered, every frame.

What must hold is stated here, in the words of PROTOCOL.md and design.md; what does not is kept in `broken`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from legato.engine.records import origin_of, record_of
from legato.events import TERMINAL, Cursor, Record
from legato.journal import Control, Lease, Segment, SessionKey, TurnRecord
from legato.turn import SessionState, reduce

NOTES = 80
SECRET = "secret-of-"
SEEN_SECONDS = 3.0
"""Within which an owner that nothing disturbs has seen a cancel."""


class Watch:
    """`log` is every event ever written, in order; `folds[seq]` is the session after that event. `time` is seconds,
    `lease` what the store has of it now."""

    def __init__(self, key: SessionKey, time: Callable[[], float], lease: Callable[[], Lease | None]) -> None:
        self.broken: list[str] = []
        self.log: list[Record] = []
        self.folds = [SessionState(key.session)]
        self.calls: set[str] = set()
        self.forbidden: set[str] = set()
        self.cancelled: set[str] = set()
        self.entered: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.allowed: Counter[str] = Counter()
        self.again: Counter[str] = Counter()
        self._questions: dict[str, tuple[str, str]] = {}
        self._granted: set[str] = set()
        self._supplied: set[str] = set()
        self.over = False
        self.expired: set[str] = set()
        self._key = key
        self._time = time
        self._lease = lease
        self._doomed = 0
        self._decided: dict[tuple[str, str], bool] = {}
        self._leases: dict[int, int] = {}
        self._asked: dict[str, float] = {}
        self._written_at: list[float] = []
        self._notes: deque[tuple[float, tuple[object, ...]]] = deque(maxlen=NOTES)
        self._written: list[str] = []
        self._sent: dict[str, Segment] = {}
        self._positions: dict[tuple[int, int], str] = {}
        self._in_flight: Counter[tuple[str, int]] = Counter()

    def morning(self, seq: int) -> None:
        """Events have expired, those beyond `seq` with their positions: what they told is known from records alone."""
        self.note("morning; the journal ends at", seq, "of", len(self.log))
        self.expired |= {record.turn for record in self.log}
        del self.log[seq:], self._written_at[seq:], self.folds[seq + 1 :]
        self.folds[-1] = replace(self.folds[-1], cursor=Cursor(0, seq))

    def note(self, *what: object) -> None:
        self._notes.append((self._time(), what))

    def holds(self, condition: bool, rule: str, *about: object) -> None:
        if not condition and not self.over:
            told = f"{rule}: " + " ".join(map(str, about))
            self.note("BROKEN", told)
            self.broken.append(told)

    def trace(self) -> str:
        """What happened last, a line each."""
        return "\n".join(f"{time:9.3f} {' '.join(map(str, what))}" for time, what in self._notes)

    @property
    def journal(self) -> str:
        """All that was ever written, byte for byte."""
        return "\n".join(self._written)

    # The journal.

    def sending(self, who: str, kind: str, segment: Segment) -> None:
        """An owner has one segment on its way at most; what it repeats, it repeats byte for byte."""
        known = self._sent.setdefault(segment.commit, segment)
        self.holds(known == segment, "a write is repeated byte for byte", who, segment.first)
        if kind != "fence":
            place = (segment.epoch, segment.first)
            same = self._positions.setdefault(place, segment.commit) == segment.commit
            self.holds(same, "what an owner once sent for a position stays", who, *place)
            self._in_flight[who, segment.epoch] += 1
            self.holds(self._in_flight[who, segment.epoch] == 1, "one segment is unacknowledged at most", who)

    def leased(self, lease: Lease) -> None:
        self._leases[lease.epoch] = max(lease.expires_at, self._leases.get(lease.epoch, 0))

    def waits(self, control: Control | None, due: bool) -> None:
        """A turn waits for a person; `due`: the next sweep finds it."""
        turn = self.folds[-1].active
        if turn is None or control is None:
            return
        decided = control.decisions.get(turn.turn, {})
        asked = any(each.request in decided for each in turn.waits_for)
        self.holds(due or not (asked or turn.turn in control.cancels), "what was asked of a turn is found", turn.turn)

    def answered(self, who: str, kind: str, segment: Segment) -> None:
        if kind != "fence":
            self._in_flight[who, segment.epoch] -= 1

    def written(self, segment: Segment) -> None:
        """A segment was created, beside what stood there before its Commit."""
        lease = self._lease()
        begins = segment.epoch > (self.log[-1].epoch if self.log else 0)
        ran_out = lease is None or lease.expires_at <= segment.records()[0].fields()["at"]
        self.holds(ran_out or not begins, "a lease is taken when it has run out", segment, lease)
        self.note("journal", segment.first, segment.last, "epoch", segment.epoch, segment.turn, segment.commit)
        self.holds(SECRET not in segment.events, "a secret is in no event", segment)
        self._written.append(f"{segment.commit} {segment.events}")
        self._refusals(segment.records())
        for record in segment.records():
            self._event(record)

    def _event(self, record: Record) -> None:
        last = self.log[-1] if self.log else None
        self.holds(record.seq == len(self.log) + 1, "seq is 1, 2, 3 ...", record)
        self.holds(last is None or record.epoch >= last.epoch, "epochs never fall", record)
        ended = self.folds[-1].find(record.turn)
        self.holds(ended is None or not ended.ended, "nothing comes after a terminal event", record)
        fence = record.type in ("turn.started", "turn.resumed")
        self.holds(fence == (last is None or record.epoch != last.epoch), "an epoch begins with its fence", record)
        doomed = self._doomed == record.epoch and record.type not in TERMINAL
        self.holds(not doomed, "a turn that has cost three owners only ends", record)
        if record.type == "turn.resumed" and record.fields()["attempt"] >= 3:
            self._doomed = record.epoch
        if record.type == "turn.interrupted":
            self.holds(record.turn in self.cancelled, "no turn is interrupted that nobody cancelled", record.turn)
        event = record.decode()
        self._about_tools(record)
        self.log.append(record)
        self._written_at.append(self._time())
        if record.seq == len(self.log):
            self.folds.append(reduce(self.folds[-1], event))

    # Tools.

    def _about_tools(self, record: Record) -> None:
        """What of the journal allows a tool to be entered."""
        fields = record.fields()
        if record.type == "tool.call":
            self.calls.add(self._tool_key(record.turn, fields["call"]))
        elif record.type == "approval.requested":
            self._questions[fields["request"]] = self._tool_key(record.turn, fields["call"]), fields["kind"]
        elif record.type == "approval.resolved":
            self._resolved(record.turn, fields["request"], fields["approved"])
        elif record.type == "credential.supplied":
            self._supplied.add(record.turn)

    def _refusals(self, together: Sequence[Record]) -> None:
        """A call that is not allowed is durable with its refusal."""
        made = {record.fields()["call"] for record in together if record.type == "tool.call"}
        for record in together:
            if record.type == "tool.result" and record.fields().get("error", {}).get("code") == "forbidden":
                self.holds(record.fields()["call"] in made, "a refusal is durable with its call", record)
                self.forbidden.add(self._tool_key(record.turn, record.fields()["call"]))

    def _resolved(self, turn: str, request: str, approved: bool) -> None:
        self.decided(turn, request, approved)
        if approved:
            key, kind = self._questions[request]
            if kind == "in_doubt":
                self.allowed[key] += 1
                self.again[key] += 1
            else:
                self._granted.add(key)

    def given(self, who: str, key: str, value: str) -> None:
        """What its user had supplied, and to whom else nobody could."""
        turn = key.split("/")[1]
        self.note(who, "is given", key, value)
        self.holds(turn in self._supplied, "what a user gives is used when that is durable", who, key)
        self.holds(value == SECRET + turn, "a tool is given what its own turn's user gave", who, key, value)

    def _tool_key(self, turn: str, call: str) -> str:
        return f"{self._key.session}/{turn}/{call}"

    def reconciled(self, who: str, key: str) -> bool:
        """What the other side knows of a call: one that it does not know may be made again."""
        made = self.done[key] > 0
        self.note(who, "reconciles", key, made)
        self.allowed[key] += not made
        return made

    def enters(self, who: str, key: str, effect: str, live: bool, asked: bool) -> None:
        if self.over:
            return
        self.note(who, "enters", key, effect)
        self.entered[key] += 1
        self.holds(key in self.calls, "a tool is entered when its call is durable", key)
        self.holds(key not in self.forbidden, "what is not allowed is not entered", key)
        self.holds(not asked or key in self._granted, "what needs an approval runs when it is given", key)
        self.holds(live, "an owner past its lease starts no tool", who, key)
        if effect == "once":
            self.holds(self.entered[key] <= 1 + self.allowed[key], "a once tool is entered once", key)

    def did(self, who: str, key: str, effect: str, thawed: bool) -> None:
        """A side effect. `thawed`: it stood within the tool; only who is called can tell that it comes too late."""
        if self.over:
            return
        self.again[key] += thawed
        self.note(who, "does", key)
        self.done[key] += 1
        if effect == "once":
            self.holds(self.done[key] <= 1 + self.again[key], "a once tool has its effect once", who, key)

    def torn(self, who: str, key: str) -> None:
        self.holds(False, "a once tool that has begun is let finish", who, key)

    def decided(self, turn: str, request: str, approved: bool) -> None:
        """A person was told that this decision counts."""
        counts = self._decided.setdefault((turn, request), approved)
        self.holds(counts == approved, "the first decision counts", turn, request)

    # Readers.

    def shown(self, who: str, record: Record, state: SessionState) -> None:
        """What is not shown early is shown when it is durable, as it stands in the journal, with all that led to it."""
        stands = record.seq <= len(self.log) and self.log[record.seq - 1].data == record.data
        self.holds(stands, "what a reader is shown is in the journal", who, record)
        same = not stands or bool(self.expired) or _same(self.folds[record.seq], state)
        self.holds(same, "who was shown an event has what led to it", who, record, state)

    def shown_early(self, who: str, record: Record) -> None:
        runs_out = self._leases.get(record.epoch, 0)
        told = record.seq <= len(self.log) or record.fields()["at"] < runs_out
        self.holds(told, "an owner past its lease shows nothing", who, record, runs_out)

    def asked(self, turn: str) -> None:
        """A cancel of this turn was taken."""
        self._asked.setdefault(turn, self._time())

    def snapshot(self, who: str, state: SessionState) -> None:
        self.note(who, "is given the snapshot", str(state.cursor))
        known = state.cursor.seq < len(self.folds) and _same(self.folds[state.cursor.seq], state)
        self.holds(known or bool(self.expired), "a snapshot is the fold of its events", who, state)

    def gone(self, who: str, turn: str | None) -> None:
        started = any(record.type == "turn.started" and record.turn == turn for record in self.log)
        self.holds(not started, "a turn that began is known", who, turn)

    # The end.

    def settled(self, turns: dict[str, TurnRecord], texts: dict[str, str], failing: set[str]) -> None:
        """What holds once nothing runs any more: every turn has its end, and its record says what the journal says."""
        for name, record in turns.items():
            events = [event for event in self.log if event.turn == name]
            ends = [event for event in events if event.type in TERMINAL]
            self.holds(len(ends) == 1, "a turn has one terminal event", name, ends)
            state = self.folds[-1].find(name)
            if not ends or state is None:
                continue
            self.holds(ends[0].type == f"turn.{record.status}", "completed is what turn.completed says", name, record)
            if name in self.expired:
                continue
            told = record_of(state, origin_of(record), ends[0].seq, record.ended_at, record.expires_at)
            self.holds(told == record, "a turn's record says what the journal says", told, record)
            self.holds(record.first == events[0].seq, "a turn's record knows its first event", record)
            if record.status == "failed":
                self._failed(record, events, name in failing)
            if record.status == "completed":
                self.holds(record.output == texts[name], "a completed text is the undisturbed one", name, record.output)

    def _failed(self, record: TurnRecord, events: list[Record], by_script: bool) -> None:
        """A turn fails as its script says, or when it has cost three owners."""
        assert record.error
        code = record.error["code"]
        lost = [event for event in events if event.type == "turn.resumed" and event.fields()["attempt"] >= 3]
        expected = by_script and code in ("scripted", "model_broken_off")
        self.holds(expected or (code == "crash_loop" and bool(lost)), "a turn completes", record)

    def undisturbed(self) -> None:
        """Where nothing was frozen, killed or cut off and no call was lost, nobody takes anything over."""
        events = [record.fields() for record in self.log if record.type == "turn.resumed"]
        resumed = [event for event in events if event["reason"] == "lease_expired"]
        self.holds(not resumed, "who lives keeps its turn", resumed)
        for record, at in zip(self.log, self._written_at, strict=True):
            late = record.type == "turn.completed" and at > self._asked.get(record.turn, at) + SEEN_SECONDS
            self.holds(not late, "a cancel reaches the owner", record.turn)

    def caught_up(self, who: str, state: SessionState, fresh: SessionState) -> None:
        self.holds(_same(fresh, state), "a client's state is a fresh snapshot", who, state, fresh)
        self.holds(bool(self.expired) or _same(self.folds[-1], state), "a client's state is the journal's", who, state)


def _same(one: SessionState, other: SessionState) -> bool:
    """But for the epoch of the cursor, which a snapshot may have from the lease."""
    at = Cursor(0, one.cursor.seq)
    return replace(one, cursor=at) == replace(other, cursor=Cursor(0, other.cursor.seq))
