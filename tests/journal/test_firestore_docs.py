"""Values and documents, both ways: through mock-firestore, as Google's client would keep them, and as messages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mockfirestore import MockFirestore

from journal.builders import EXPIRY, NOW, control, decided, head, lease, private, segment, turn
from legato.events import ErrorInfo
from legato.journal import SEGMENT_BYTES, Commit, Segment, SessionKey
from legato.journal import firestore_docs as docs
from legato.journal import firestore_wire as wire
from legato.turn import ToolState

TOOLS = (
    ToolState("1-1", 1, "lookup", {"key": ["ä", None, 1.5]}, "read", "ok", content={"a": [True]}),
    ToolState("1-2", 1, "mail", {}, "once", "error", error=ErrorInfo(code="no", message="no\u2028pe")),
)
ENDED = turn(last=9, ended_at=NOW + 1, output="done\n\0", tools=TOOLS, usage={"input": 3}, retry_of="t0")
FAILED = turn(last=9, ended_at=NOW + 1, partial="", error={"code": "x", "message": "y", "retryable": False})
VALUES = [
    (head(3, 17, deleted=True), docs.head_fields, docs.head_of),
    (head(turn=None), docs.head_fields, docs.head_of),
    (lease(2, "a", "n"), docs.lease_fields, docs.lease_of),
    (control("t1", "t.2`x"), docs.control_fields, docs.control_of),
    (control(), docs.control_fields, docs.control_of),
    (decided("t1", "r1", "no"), docs.control_fields, docs.control_of),
    (turn(), docs.turn_fields, docs.turn_of),
    (ENDED, docs.turn_fields, docs.turn_of),
    (FAILED, docs.turn_fields, docs.turn_of),
    (segment(7, 9, text='"\u2028é\U0001f600'), lambda s: docs.segment_documents(s)["journal/000000000007"], None),
]


def set_and_read_back(fields: docs.Fields) -> Any:
    document = MockFirestore().collection("kept").document("here")
    document.set(fields)
    return document.get().to_dict()


def through_messages(fields: docs.Fields) -> Any:
    sent = wire.put("kept/here", fields).SerializeToString()
    return wire.decode(wire.Write.FromString(sent).update.fields)


@pytest.mark.parametrize("store", [set_and_read_back, through_messages])
@pytest.mark.parametrize(("value", "fields", "of"), VALUES)
def test_a_value_comes_back_as_it_was(store: Any, value: Any, fields: Any, of: Any) -> None:
    kept = store(fields(value))
    assert kept == fields(value)
    assert (of(kept) if of else docs.assemble([kept], NOW)[0]) == value


@given(st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text()
    | st.datetimes(timezones=st.just(UTC)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8,
))  # fmt: skip
def test_messages_keep_every_type_of_value(value: Any) -> None:
    kept = through_messages({"field": value})["field"]
    assert kept == value
    assert type(kept) is type(value)


@pytest.mark.parametrize("ms", [0, 1, 999, NOW, NOW + 1, 2**42 + 1])
def test_milliseconds_are_exact(ms: int) -> None:
    assert docs.milliseconds(docs.timestamp(ms)) == ms
    assert docs.milliseconds(through_messages({"at": docs.timestamp(ms)})["at"]) == ms


def test_only_expire_at_is_a_timestamp() -> None:
    documents = [docs.head_fields(head()), docs.lease_fields(lease(), head()), docs.turn_fields(ENDED)]
    times = {name for fields in documents for name, value in fields.items() if isinstance(value, datetime)}
    assert times == {"expire_at"}


def test_a_segment_is_laid_out_as_the_design_has_it() -> None:
    documents = docs.segment_documents(segment(7, 9))
    assert list(documents) == ["journal/000000000007"]
    fields = documents["journal/000000000007"]
    assert set(fields) == {"first", "last", "epoch", "turn", "commit", "version", "events", "expire_at"}


@pytest.mark.parametrize(
    ("uid", "expected"),
    [
        ("ann@example.com", "ann@example.com"),
        ("Ünï", "Ünï"),
        ("a/b", "a%2Fb"),
        ("a%2Fb", "a%252Fb"),
        (".", "%2E"),
        ("..", "%2E."),
        ("...", "..."),
        ("__x__", "%5F_x__"),
        ("__x", "__x"),
        ("a\n\0", "a%0A%00"),
        ("\ud800", "%ED%A0%80"),
    ],
)
def test_a_document_id_encodes_only_what_it_may_not_hold(uid: str, expected: str) -> None:
    assert docs.session_path(SessionKey(uid, "s")) == f"users/{expected}/agent_sessions/s"


@given(st.text(), st.text())
def test_ids_of_different_principals_never_meet(one: str, other: str) -> None:
    assert (docs.document_id(one) == docs.document_id(other)) == (one == other)


@given(st.text(st.characters()), st.text(st.characters()))
def test_a_session_is_known_again_by_its_path(uid: str, session: str) -> None:
    key = SessionKey(uid, session)
    assert docs.key_of(f"{docs.session_path(key)}/{docs.LEASE}") == key


@given(st.text(st.characters()), st.text(st.characters()))
def test_private_documents_of_one_turn_lie_in_its_range_and_no_names_meet(one: str, other: str) -> None:
    paths = [docs.private_path(private(name), part) for name in (one, other) for part in (0, 1)]
    assert len(set(paths)) == (2 if one == other else 4)
    first, end = docs.private_range("t1")
    assert all(first <= path < end for path in paths)
    assert not any(first <= docs.private_path(private(one, turn=turn)) < end for turn in ("t", "t10", "t1-", "T1"))


def test_a_private_text_is_laid_out_as_the_design_has_it() -> None:
    documents = docs.private_documents(private("step.model.2", '"é/"'))
    assert documents == {
        "private/t1.step.model.2": {
            "turn": "t1", "name": "step.model.2", "text": '"é/"', "expire_at": docs.timestamp(EXPIRY)
        }
    }  # fmt: skip


def test_parts_of_two_texts_are_never_put_together() -> None:
    old, new = (list(docs.private_documents(private("x", letter * 2 * SEGMENT_BYTES)).values()) for letter in "ab")
    kept = [fields for fields in (new[0], old[1]) if fields]
    assert len(kept) == 2
    assert docs.private_texts(kept, NOW) == {}
    assert docs.private_texts(filter(None, reversed(new)), NOW) == {"x": "b" * 2 * SEGMENT_BYTES}


def test_a_lease_is_found_by_its_shard_only_while_it_has_a_time_to_look() -> None:
    shards = {docs.sweep_fields(SessionKey("ann", f"s{n}"), lease(sweep_at=NOW))["sweep_shard"] for n in range(99)}
    assert shards == set(range(docs.SHARDS))
    assert set(docs.sweep_fields(SessionKey("ann", "s"), lease(sweep_at=NOW))) == set(docs.SWEEP)
    assert docs.sweep_fields(SessionKey("ann", "s"), lease()) == {}


@given(st.text(st.sampled_from("aé€\U0001f600")), st.integers(4, 9))
def test_text_is_cut_between_characters_and_joined_again(text: str, limit: int) -> None:
    pieces = docs.cut(text, limit)
    assert "".join(pieces) == text
    assert all(len(piece.encode()) <= limit for piece in pieces)


def test_a_large_event_is_split_into_parts_that_are_one_segment_again() -> None:
    large = segment(7, text="é" * SEGMENT_BYTES)
    documents = docs.segment_documents(large)
    assert list(documents) == ["journal/000000000007", "journal/000000000007.1", "journal/000000000007.2"]
    assert [(f["part"], f["parts"], f["first"], f["last"]) for f in documents.values()] == [
        (part, 3, 7, 7) for part in range(3)
    ]
    assert docs.assemble(reversed(documents.values()), NOW) == [large]


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_segment_that_lacks_a_part_is_a_hole(missing: int) -> None:
    parts = list(docs.segment_documents(segment(7, text="é" * SEGMENT_BYTES)).values())
    del parts[missing]
    assert docs.assemble([*parts, *docs.segment_documents(segment(8)).values()], NOW) == [segment(8)]


def test_an_expired_segment_is_left_out() -> None:
    fields = [*docs.segment_documents(segment(1)).values(), *docs.segment_documents(segment(2)).values()]
    assert docs.assemble(fields, EXPIRY - 1) == [segment(1), segment(2)]
    assert docs.assemble(fields, EXPIRY) == []


def test_a_document_holds_what_a_write_wrote_until_a_field_changes() -> None:
    write = wire.put("x", docs.head_fields(head()))
    assert wire.holds(write.update, write)
    assert not wire.holds(wire.put("x", docs.head_fields(head(deleted=True))).update, write)


def test_a_masked_write_is_held_by_a_document_with_more_fields() -> None:
    write = wire.merge("x", docs.lease_fields(lease()), None)
    assert wire.holds(wire.put("x", docs.lease_fields(lease(), head())).update, write)
    assert not wire.holds(wire.put("x", docs.lease_fields(lease(commit="other"))).update, write)


def test_versions_are_put_where_they_belong() -> None:
    commit = docs.stamped(
        Commit(segment(1), head(), lease(), control()), {docs.HEAD: 1, docs.LEASE: 2, docs.CONTROL: 3}
    )
    assert [part.version for part in (commit.head, commit.lease, commit.control) if part] == [1, 2, 3]


def test_a_precondition_names_the_very_microsecond() -> None:
    stored = wire.put("x", {})
    stored.current_document.update_time.FromMicroseconds(1796055210074816)
    assert wire.replace("x", {}, wire.version(stored.current_document.update_time)) == stored


def test_a_value_that_firestore_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="no type"):
        wire.put("x", {"events": b"bytes"})
    with pytest.raises(UnicodeEncodeError):
        wire.put("x", {"events": Segment(1, 1, 1, "t", "c", "\ud800", EXPIRY).events})
