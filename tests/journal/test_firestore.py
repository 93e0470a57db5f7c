"""The journal in Firestore: the contract over the real emulator, and what is this store's own."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud.firestore import AsyncClient, FieldFilter

from journal.builders import EXPIRY, HOUR, KEY, NOW, control, head, lease, private, segment, start, turn
from journal.contract import JournalContract, OpenJournal, buried
from legato.errors import JournalRejected, JournalUnavailable
from legato.events import Record
from legato.journal import Commit, Journal, Segment, SessionKey
from legato.journal import firestore_docs as docs
from legato.journal.firestore import FirestoreJournal

pytestmark = pytest.mark.emulator

SESSION = "users/ann/agent_sessions/s1"


@pytest.fixture
async def open_journal(emulator: str, firestore_project: str) -> AsyncIterator[OpenJournal]:
    opened: list[Journal] = []

    def open_one() -> Journal:
        opened.append(FirestoreJournal(firestore_project, "(default)", emulator=emulator))
        return opened[-1]

    yield open_one
    for journal in opened:
        await journal.close()


@pytest.fixture
def journal(open_journal: OpenJournal) -> Journal:
    return open_journal()


@pytest.fixture
def client(emulator: str, firestore_project: str, monkeypatch: pytest.MonkeyPatch) -> AsyncClient:
    """Google's own client over the same database."""
    monkeypatch.setenv("FIRESTORE_EMULATOR_HOST", emulator)
    return AsyncClient(project=firestore_project, credentials=AnonymousCredentials())


class TestFirestore(JournalContract):
    pass


async def test_documents_lie_where_the_design_puts_them(journal: Journal, client: AsyncClient) -> None:
    first = start()
    await journal.commit(KEY, Commit(first.segment, first.head, first.lease, control("t1"), turn(), new_turn=True))
    for path, expected in {
        f"{SESSION}/journal/000000000001": docs.segment_documents(first.segment or segment(1))["journal/000000000001"],
        SESSION: docs.head_fields(head()),
        f"{SESSION}/lease/current": docs.lease_fields(lease(), head()),
        f"{SESSION}/control/current": docs.control_fields(control("t1")),
        f"{SESSION}/turns/t1": docs.turn_fields(turn()),
    }.items():
        assert (await client.document(path).get()).to_dict() == expected


async def test_an_append_is_one_write_that_a_query_by_its_last_event_finds(
    journal: Journal, client: AsyncClient
) -> None:
    await journal.append(KEY, segment(1, 3))
    newest = client.collection(f"{SESSION}/journal").where(filter=FieldFilter("last", ">=", 3))
    assert [document.id for document in await newest.get()] == ["000000000001"]


async def test_a_renewal_leaves_the_other_fields_of_the_lease_document(journal: Journal, client: AsyncClient) -> None:
    held = (await journal.commit(KEY, start())).lease
    assert held
    await client.document(f"{SESSION}/lease/current").update({"sweep_shard": 3})
    stored = (await journal.standing(KEY)).lease
    assert stored
    await journal.renew(KEY, lease(commit="r", version=stored.version, expires_at=NOW + HOUR))
    fields = (await client.document(f"{SESSION}/lease/current").get()).to_dict()
    assert fields == {**docs.lease_fields(lease(commit="r", expires_at=NOW + HOUR), head()), "sweep_shard": 3}


async def test_a_lease_carries_its_shard_until_there_is_no_time_to_look(journal: Journal, client: AsyncClient) -> None:
    document = client.document(f"{SESSION}/lease/current")
    held = (await journal.commit(KEY, Commit(lease=lease(sweep_at=NOW)))).lease
    assert held
    swept = {"sweep_at": NOW, "sweep_shard": zlib.crc32(SESSION.encode()) % 8}
    assert (await document.get()).to_dict() == {**docs.lease_fields(lease()), **swept}
    held = await journal.renew(KEY, replace(held, sweep_at=None, commit="r"))
    assert (await document.get()).to_dict() == {**docs.lease_fields(held), **swept}
    await journal.commit(KEY, Commit(lease=held))
    assert (await document.get()).to_dict() == docs.lease_fields(held)


async def test_a_deleted_private_text_leaves_no_part(journal: Journal, client: AsyncClient) -> None:
    await journal.commit(KEY, Commit(private=(private("x", "w" * (3 * 1024 * 1024 - 9000)),)))
    parts = [document.id for document in await client.collection(f"{SESSION}/private").get()]
    assert parts == ["t1.x", "t1.x%.1", "t1.x%.2", "t1.x%.3"]
    await journal.commit(KEY, Commit(private=(private("x", None),)))
    assert await client.collection(f"{SESSION}/private").get() == []


async def test_a_large_event_is_kept_in_parts_and_a_missing_part_makes_a_hole(
    journal: Journal, client: AsyncClient
) -> None:
    await journal.append(KEY, segment(1, text="é" * 1024 * 1024))
    await journal.append(KEY, segment(2))
    parts = [document.id for document in await client.collection(f"{SESSION}/journal").get()]
    assert parts == ["000000000001", "000000000001.1", "000000000001.2", "000000000002"]
    await client.document(f"{SESSION}/journal/000000000001.1").delete()
    assert await journal.read(KEY, 0, NOW) == [segment(2)]


async def test_parts_that_a_page_cuts_apart_are_put_together(journal: Journal) -> None:
    large = [segment(seq, text="w" * 950_000) for seq in range(1, 8)]
    for one in large:
        await journal.append(KEY, one)
    assert await journal.read(KEY, 0, NOW, limit=1) == large[:1]
    assert await journal.read(KEY, 0, NOW, limit=6) == large[:6]
    assert await journal.read(KEY, 2, NOW) == large[1:]


async def test_what_is_too_large_for_a_commit_is_rejected_with_its_size(journal: Journal) -> None:
    with pytest.raises(JournalRejected, match=r"^\d{7} bytes at once are too many: a Commit takes 3145728$"):
        await journal.append(KEY, segment(1, text="w" * (3 * 1024 * 1024 - 900)))


async def test_one_document_that_firestore_refuses_harms_nobody_in_its_group(journal: Journal) -> None:
    keys = [SessionKey("ann", f"s{number}") for number in range(20)]
    too_long = SessionKey("u" * 2000, "s")
    *written, refused = await asyncio.gather(
        *(journal.append(key, segment(1)) for key in [*keys, too_long]), return_exceptions=True
    )
    assert written == [None] * 20
    assert isinstance(refused, JournalRejected)
    assert [await journal.read(key, 0, NOW) for key in keys] == [[segment(1)]] * 20


async def test_reading_goes_on_behind_a_page_of_expired_segments(journal: Journal) -> None:
    gone = (journal.append(KEY, segment(seq, expires_at=NOW)) for seq in range(1, 31))
    await asyncio.gather(*gone, *(journal.append(KEY, segment(seq)) for seq in range(31, 41)))
    assert await journal.read(KEY, 0, NOW, limit=3) == [segment(31), segment(32), segment(33)]


async def test_a_purge_deletes_more_than_a_batch_holds_and_what_it_has_no_name_for(
    journal: Journal, client: AsyncClient
) -> None:
    await journal.commit(KEY, start())
    await asyncio.gather(*(journal.append(KEY, segment(seq)) for seq in range(2, 600)))
    await journal.append(KEY, segment(600, text="w" * 1024 * 1024))
    await client.document(f"{SESSION}/private/t1.checkpoint").set({"of": "later"})
    tomb = await buried(journal)
    await client.document(f"{SESSION}/private/t2.checkpoint").set({"of": "what came since"})
    await journal.purge(KEY, tomb)
    left = [document.id async for kind in client.document(SESSION).collections() async for document in kind.stream()]
    assert left == ["t2.checkpoint"]
    assert (await client.document(SESSION).get()).exists


async def test_an_event_s_line_is_kept_byte_for_byte(journal: Journal, client: AsyncClient) -> None:
    line = '{"seq":1,"epoch":1,"turn":"t1","at":1,"type":"new.kind", "odd" : "\\u2028\U0001f600\\u0000"}'
    odd = Segment.of([Record.of(line)], "c1", EXPIRY)
    await journal.append(KEY, odd)
    stored = (await client.document(f"{SESSION}/journal/000000000001").get()).get("events")
    assert stored == f"[\n{line}\n]"
    assert (await journal.read(KEY, 0, NOW))[0].records()[0].data == line


async def test_a_database_that_cannot_be_reached_is_unavailable() -> None:
    nowhere = FirestoreJournal("demo-nowhere", "(default)", emulator="127.0.0.1:1", timeout=2)
    with pytest.raises(JournalUnavailable, match="UNAVAILABLE"):
        await nowhere.check()
    await nowhere.close()


async def test_missing_credentials_are_rejected_with_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")
    journal = FirestoreJournal("demo-nowhere", "(default)")
    with pytest.raises(JournalRejected, match=r"/nowhere/key\.json"):
        await journal.check()
    await journal.close()
