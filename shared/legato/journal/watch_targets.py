"""What Listen is asked for and what it tells: targets, requests and messages. Pure; knows nothing of streams.

A session has two targets. Its documents are one: head and control change so seldom that whoever waits for the one may
well be sent the other. The newest segment is a query, and asked for only where somebody follows: an owner would pay a
read for each segment that it has written itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from google.cloud.firestore_v1.types import firestore

from legato.journal import firestore_wire as wire
from legato.journal.firestore_docs import CONTROL
from legato.journal.firestore_wire import Message
from legato.journal.wakeups import NEVER, UTMOST, Marks

Change: Final = firestore.TargetChange.TargetChangeType


REST_MOST: Final = 12


class Aim(NamedTuple):
    """What a target watches; `session` is the name of the session's document."""

    session: str
    part: Literal["documents", "newest"]


def aims(session: str, known: Marks) -> list[Aim]:
    """What must be watched for somebody who waits beyond `known`."""
    documents = Aim(session, "documents")
    return [documents] if known.seq == NEVER else [documents, Aim(session, "newest")]


@dataclass(eq=False)
class Target:
    """One target, and what Listen has told of it.

    `number` is its id on the stream, 0 while it is not there; `current`: all that there was when it was added has been
    told; `lost`: it was on the stream and is no more; `refusals`: how often in a row the server has taken it off, and
    `rest` for how many ticks it is left alone for that; `users`: who waits, and `idle`: nobody has for a tick.
    """

    aim: Aim
    number: int = 0
    current: bool = False
    lost: bool = False
    refusals: int = 0
    rest: int = 0
    users: int = 0
    idle: bool = False
    held: dict[str, int] = field(default_factory=dict)

    @property
    def marks(self) -> Marks:
        """How far the session has come, as far as this target shows it."""
        session = self.aim.session
        if self.aim.part == "newest":
            return Marks(seq=max(self.held.values(), default=0))
        return Marks(head=self.held.get(session, 0), control=self.held.get(f"{session}/{CONTROL}", 0))

    @property
    def utmost(self) -> Marks:
        """Beyond what anybody knows who waits for this target."""
        return Marks(seq=UTMOST) if self.aim.part == "newest" else Marks(head=UTMOST, control=UTMOST)

    def lose(self) -> None:
        """The stream does not hold it any more."""
        self.number, self.current, self.lost = 0, False, True
        self.held.clear()

    def refused(self) -> None:
        self.lose()
        self.refusals = min(self.refusals + 1, REST_MOST)
        self.rest = self.refusals

    def settle(self) -> bool:
        """It is current. True when who waits must look what it has missed; the newest segment shows that by itself."""
        missed = self.lost and self.aim.part == "documents"
        self.current, self.lost, self.refusals = True, False, 0
        return missed

    def put(self, document: Message) -> None:
        newest = self.aim.part == "newest"
        mark = document.fields["last"].integer_value if newest else wire.version(document.update_time)
        self.held[document.name] = int(mark)

    def drop(self, name: str) -> None:
        self.held.pop(name, None)


def add_request(database: str, number: int, aim: Aim) -> Message:
    request = wire.ListenRequest(database=database)
    target = request.add_target
    target.target_id = number
    if aim.part == "documents":
        target.documents.documents.extend((aim.session, f"{aim.session}/{CONTROL}"))
    else:
        query = wire.select(aim.session, "journal", "last", 1, descending=True)
        target.query.parent = query.parent
        target.query.structured_query.CopyFrom(query.structured_query)
    return request


def remove_request(database: str, number: int) -> Message:
    return wire.ListenRequest(database=database, remove_target=number)


def probe_requests(database: str, number: int, name: str) -> tuple[Message, Message]:
    """What a stream that is alive answers: a target added and removed again."""
    probe = wire.ListenRequest(database=database)
    probe.add_target.target_id = number
    probe.add_target.documents.documents.append(name)
    return probe, remove_request(database, number)
