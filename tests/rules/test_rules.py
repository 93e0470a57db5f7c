"""What a client may do in Firestore itself: listen to the heads of its own sessions, and nothing else."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

RULES = Path(__file__).parents[2] / "firestore.rules"
HEAD = "users/ann/agent_sessions/s1"
BELOW = ["journal/000000000001", "turns/t1", "lease/current", "control/current", "private/t1.credential.mail"]

pytestmark = pytest.mark.emulator


def token(project: str, uid: str) -> str:
    """An unsigned ID token, which the emulator takes for a signed one."""
    claims = {"iss": f"https://securetoken.google.com/{project}", "aud": project, "sub": uid, "user_id": uid}
    parts = ({"alg": "none", "typ": "JWT"}, {**claims, "iat": 0, "auth_time": 0, "exp": 4_000_000_000})
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."


class Documents:
    """The emulator's documents as one user sees them, or as the gateway does, whom the rules do not bind."""

    def __init__(self, emulator: str, project: str) -> None:
        self._project, self._host = project, f"http://{emulator}"
        self._url = f"{self._host}/v1/projects/{project}/databases/(default)/documents"
        self._http = httpx.Client(trust_env=False)

    def enforce(self, rules: str) -> None:
        files = {"rules": {"files": [{"name": "firestore.rules", "content": rules}]}}
        url = f"{self._host}/emulator/v1/projects/{self._project}:securityRules"
        self._http.put(url, json=files).raise_for_status()

    def ask(self, method: str, path: str, uid: str | None) -> int:
        """The status of one request: 200, 403 or 404."""
        bearer = {"owner": "owner", None: None}.get(uid, token(self._project, uid or ""))
        headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
        body = {"fields": {"seq": {"integerValue": "1"}}} if method == "PATCH" else None
        return self._http.request(method, f"{self._url}/{path}", json=body, headers=headers).status_code

    def close(self) -> None:
        self._http.close()


@pytest.fixture
def documents(emulator: str, firestore_project: str) -> Iterator[Documents]:
    """A session of Ann's with one document of every kind, under the project's rules."""
    documents = Documents(emulator, firestore_project)
    documents.enforce(RULES.read_text())
    for path in (HEAD, *(f"{HEAD}/{below}" for below in BELOW)):
        assert documents.ask("PATCH", path, "owner") == 200
    yield documents
    documents.close()


def test_a_client_reads_the_heads_of_its_own_sessions(documents: Documents) -> None:
    assert documents.ask("GET", HEAD, "ann") == 200
    assert documents.ask("GET", "users/ann/agent_sessions", "ann") == 200


@pytest.mark.parametrize("uid", ["bob", None])
def test_nobody_else_reads_them(documents: Documents, uid: str | None) -> None:
    assert documents.ask("GET", HEAD, uid) == 403
    assert documents.ask("GET", "users/ann/agent_sessions", uid) == 403


@pytest.mark.parametrize("below", BELOW)
def test_nothing_below_a_head_is_read_by_a_client(documents: Documents, below: str) -> None:
    assert documents.ask("GET", f"{HEAD}/{below}", "ann") == 403
    assert documents.ask("GET", f"{HEAD}/{below.partition('/')[0]}", "ann") == 403


@pytest.mark.parametrize("path", [HEAD, "users/ann/agent_sessions/new", "users/ann", *(f"{HEAD}/{b}" for b in BELOW)])
@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
def test_a_client_writes_nothing(documents: Documents, method: str, path: str) -> None:
    assert documents.ask(method, path, "ann") == 403
