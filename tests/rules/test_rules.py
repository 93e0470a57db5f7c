"""What a client may do in Firestore itself: read its own sessions, their turns and journals, and nothing else.

Over gRPC with unsigned ID tokens, as the emulator takes them. The emulator's REST face decodes a path twice.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from google.cloud.firestore_v1.types import document, firestore, query, write

from legato.journal import SessionKey
from legato.journal.firestore_docs import session_path

RULES = Path(__file__).parents[2] / "firestore.rules"
SESSION = "users/ann/agent_sessions/s1"
OPEN = [SESSION, f"{SESSION}/turns/t1", f"{SESSION}/journal/000000000001"]
CLOSED = [f"{SESSION}/{below}" for below in ("lease/current", "control/current", "private/t1.credential.mail")]
STRANGERS = ["bob", "Ann", "ann ", "ann/x", None]

pytestmark = pytest.mark.emulator


def token(project: str, uid: str, **claimed: object) -> str:
    """An unsigned ID token, which the emulator takes for a signed one; it checks neither its times nor its audience."""
    claims = {"iss": f"https://securetoken.google.com/{project}", "aud": project, "sub": uid, "user_id": uid}
    parts = ({"alg": "none", "typ": "JWT"}, {**claims, **claimed, "iat": 0, "auth_time": 0, "exp": 4_000_000_000})
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."


class Database:
    """The emulator's documents as a bearer sees them; `owner` is the gateway's, whom the rules do not bind."""

    def __init__(self, emulator: str, project: str) -> None:
        self.project = project
        self._name = f"projects/{project}/databases/(default)"
        self._channel = grpc.insecure_channel(emulator)
        self._rules = f"http://{emulator}/emulator/v1/projects/{project}:securityRules"

    def enforce(self, rules: str) -> None:
        files = {"rules": {"files": [{"name": "firestore.rules", "content": rules}]}}
        httpx.put(self._rules, json=files, trust_env=False, timeout=30).raise_for_status()

    def close(self) -> None:
        self._channel.close()

    def get(self, path: str, bearer: str | None) -> str:
        """OK or the status that refused it; so for all of these."""
        return self._ask("GetDocument", firestore.GetDocumentRequest(name=self._named(path)), bearer)

    def lists(self, parent: str, collection: str, bearer: str | None, *, everywhere: bool = False) -> str:
        wanted = query.StructuredQuery(from_=[{"collection_id": collection, "all_descendants": everywhere}])
        return self._run(parent, wanted, bearer)

    def newest(self, session: str, bearer: str | None) -> str:
        """The query that a follower makes."""
        return self._run(session, _newest(), bearer)

    def listen(self, target: dict[str, Any], bearer: str | None) -> str:
        request = firestore.ListenRequest(database=self._name, add_target={"target_id": 1, **target})
        call = self._method("stream_stream", "Listen", request)(
            iter([request]), metadata=self._metadata(bearer), timeout=30
        )
        try:
            for data in call:
                change = firestore.ListenResponse.deserialize(data).target_change
                if change.cause.code:
                    return str(grpc.StatusCode((change.cause.code, "permission denied")).name)
                if change.target_change_type == firestore.TargetChange.TargetChangeType.CURRENT:
                    return "OK"
        except grpc.RpcError as refused:
            return str(refused.code().name)
        finally:
            call.cancel()
        return "ended"

    def listens_to_document(self, path: str, bearer: str | None) -> str:
        return self.listen({"documents": {"documents": [self._named(path)]}}, bearer)

    def listens_to_newest(self, session: str, bearer: str | None) -> str:
        return self.listen({"query": {"parent": self._named(session), "structured_query": _newest()}}, bearer)

    def put(self, path: str, bearer: str | None) -> str:
        changed = document.Document(name=self._named(path), fields={"last": {"integer_value": 1}})
        return self._commit(write.Write(update=changed), bearer)

    def delete(self, path: str, bearer: str | None) -> str:
        return self._commit(write.Write(delete=self._named(path)), bearer)

    def increment(self, path: str, bearer: str | None) -> str:
        one = {"field_path": "last", "increment": {"integer_value": 1}}
        transform = write.DocumentTransform(document=self._named(path), field_transforms=[one])
        return self._commit(write.Write(transform=transform), bearer)

    def _commit(self, change: write.Write, bearer: str | None) -> str:
        batch = firestore.BatchWriteRequest(database=self._name, writes=[change])
        told = [self._ask("Commit", firestore.CommitRequest(database=self._name, writes=[change]), bearer)]
        if bearer != "owner":
            told.append(self._ask("BatchWrite", batch, bearer))
        (outcome,) = set(told)
        return outcome

    def _run(self, parent: str, wanted: query.StructuredQuery, bearer: str | None) -> str:
        named = self._named(parent) if parent else f"{self._name}/documents"
        request = firestore.RunQueryRequest(parent=named, structured_query=wanted)
        return self._outcome(lambda: list(self._streamed("RunQuery", request, bearer)))

    def _ask(self, method: str, request: Any, bearer: str | None) -> str:
        call = self._method("unary_unary", method, request)
        return self._outcome(lambda: call(request, metadata=self._metadata(bearer), timeout=30))

    def _streamed(self, method: str, request: Any, bearer: str | None) -> Any:
        return self._method("unary_stream", method, request)(request, metadata=self._metadata(bearer), timeout=30)

    def _outcome(self, call: Any) -> str:
        try:
            call()
        except grpc.RpcError as refused:
            return str(refused.code().name)
        return "OK"

    def _method(self, kind: str, name: str, request: Any) -> Any:
        path = f"/google.firestore.v1.Firestore/{name}"
        return getattr(self._channel, kind)(path, request_serializer=type(request).serialize)

    def _metadata(self, bearer: str | None) -> tuple[tuple[str, str], ...]:
        which = ("google-cloud-resource-prefix", self._name)
        return (which, ("authorization", f"Bearer {bearer}")) if bearer else (which,)

    def _named(self, path: str) -> str:
        return f"{self._name}/documents/{path}"


def _newest() -> query.StructuredQuery:
    by_last = {"field": {"field_path": "last"}, "direction": "DESCENDING"}
    return query.StructuredQuery(from_=[{"collection_id": "journal"}], order_by=[by_last], limit=1)


@pytest.fixture
def database(emulator: str, firestore_project: str) -> Iterator[Database]:
    """A session of Ann's with one document of every kind, under the project's rules."""
    database = Database(emulator, firestore_project)
    database.enforce(RULES.read_text())
    for path in OPEN + CLOSED:
        assert database.put(path, "owner") == "OK"
    yield database
    database.close()


@pytest.fixture
def ann(database: Database) -> str:
    return token(database.project, "ann")


@pytest.fixture(params=STRANGERS)
def stranger(request: pytest.FixtureRequest, database: Database) -> str | None:
    """The bearer of another user; None is nobody's."""
    return None if request.param is None else token(database.project, request.param)


DENIED = "PERMISSION_DENIED"


def test_an_owner_reads_lists_and_listens_to_what_is_its_own(database: Database, ann: str) -> None:
    for path in OPEN:
        assert database.get(path, ann) == "OK"
        assert database.listens_to_document(path, ann) == "OK"
    assert database.lists("users/ann", "agent_sessions", ann) == "OK"
    assert database.lists(SESSION, "turns", ann) == "OK"
    assert database.newest(SESSION, ann) == "OK"
    assert database.listens_to_newest(SESSION, ann) == "OK"


def test_what_only_instances_need_is_read_by_no_client(database: Database, ann: str) -> None:
    for path in CLOSED:
        assert database.get(path, ann) == DENIED
        assert database.listens_to_document(path, ann) == DENIED
        assert database.lists(SESSION, path.split("/")[-2], ann) == DENIED


def test_nobody_else_reads_lists_or_listens_to_anything(database: Database, stranger: str | None) -> None:
    for path in OPEN + CLOSED:
        assert database.get(path, stranger) == DENIED
        assert database.listens_to_document(path, stranger) == DENIED
    assert database.lists("users/ann", "agent_sessions", stranger) == DENIED
    assert database.lists(SESSION, "turns", stranger) == DENIED
    assert database.newest(SESSION, stranger) == DENIED
    assert database.listens_to_newest(SESSION, stranger) == DENIED


@pytest.mark.parametrize("path", [*OPEN, *CLOSED, "users/ann", "users/ann/agent_sessions/new", f"{SESSION}/turns/new"])
def test_nobody_writes(database: Database, ann: str, path: str) -> None:
    for bearer in (ann, token(database.project, "bob"), None):
        assert database.put(path, bearer) == DENIED
        assert database.delete(path, bearer) == DENIED
        assert database.increment(path, bearer) == DENIED


@pytest.mark.parametrize("collection", ["agent_sessions", "turns", "journal", "private", "lease", "control"])
def test_nobody_asks_across_users(database: Database, ann: str, collection: str) -> None:
    assert database.lists("", collection, ann, everywhere=True) == DENIED


@pytest.mark.parametrize("uid", ["a%b", "a/b", "a%2Fb", "a b", "ü😀", "a@b.c:d|e", "$0"])
def test_a_user_of_any_id_reads_what_is_its_own_alone(database: Database, uid: str) -> None:
    """The journal writes a '%' of an id as '%25', and a '/' as '%2F'."""
    session = session_path(SessionKey(uid, "s1"))
    assert database.put(session, "owner") == "OK"
    for other in {uid, "a%b", "a%25b", "a/b", "a%2Fb", "a%252Fb", "a", "b"}:
        assert database.get(session, token(database.project, other)) == ("OK" if other == uid else DENIED)


@pytest.mark.parametrize(
    "path", ["users/ann", "else/ann", f"{SESSION}/other/o1", *(f"{path}/deeper/d" for path in OPEN)]
)
def test_no_document_of_another_kind_is_read(database: Database, ann: str, path: str) -> None:
    parent, _, collection = path.rpartition("/")[0].rpartition("/")
    assert database.put(path, "owner") == "OK"
    assert database.get(path, ann) == DENIED
    assert database.lists(parent, collection, ann) == DENIED


def test_what_a_token_claims_beside_its_uid_opens_nothing(database: Database) -> None:
    bob = token(database.project, "bob", admin=True, email="ann", name="ann", firebase={"tenant": "ann"})
    assert {database.get(path, bob) for path in OPEN} == {DENIED}
