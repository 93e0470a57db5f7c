"""README, PROTOCOL and docs say what is so: their code runs, their settings are those, tests that they name exist."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
from fnmatch import fnmatch
from hashlib import sha256
from pathlib import Path
from types import ModuleType

import flask
import httpx
import pytest

from legato import errors
from legato.app import load_agents, load_credentials, load_verifier
from legato.cli import main
from legato.client import LegatoClient
from legato.dev.supervisor import Dev
from legato.http.problems import status_of
from legato.settings import Settings
from legato.turn import TRANSITIONS

ROOT = Path(__file__).resolve().parents[2]
README, PROTOCOL, SECURITY = ((ROOT / name).read_text() for name in ("README.md", "PROTOCOL.md", "SECURITY.md"))
ADK, MODELS, CREDENTIALS, IDENTITY = (
    (ROOT / "docs" / f"{name}.md").read_text() for name in ("adk", "models", "credentials", "identity")
)
BLOCKS = dict(
    re.findall(r"```python\n# (\w+)\.py\n(.*?)```", README + ADK + MODELS + CREDENTIALS + IDENTITY, re.DOTALL)
)
TURN = {"turn": "t", "input": "Hello"}
CALLER = {"Authorization": "Bearer dev:me"}


def imported(name: str, directory: Path) -> ModuleType:
    """A block of the README as the module that its first line names."""
    path = directory / f"{name}.py"
    path.write_text(BLOCKS[name])
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path}/journal.sqlite"
    monkeypatch.setenv("LEGATO_JOURNAL", url)
    return url


@pytest.mark.parametrize("name", ["bank", "byhand", "plain", "steps", "guarded", "team", "guide"])
def test_an_agent_of_the_readme_is_one(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "k")
    imported(name, tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert load_agents(f"{name}:agent")


def test_the_credentials_of_the_docs_are_sources_and_its_agent_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REFRESH_TOKEN", "CLIENT_ID", "CLIENT_SECRET"):
        monkeypatch.setenv(name, "x")
    imported("tokens", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert list(load_credentials("tokens:credentials")) == ["reports", "storage", "calendar"]
    assert load_agents("tokens:agent")


async def test_the_verifier_of_the_docs_lets_in_who_shows_a_badge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BADGES", f"{sha256(b'b-1').hexdigest()}=ann")
    imported("staff", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    verifier = load_verifier("staff:verifier")
    assert (await verifier.verify({"authorization": "Bearer b-1"})).uid == "ann"
    with pytest.raises(errors.Unauthorized):
        await verifier.verify({"authorization": "Bearer b-2"})


def test_the_tool_of_the_docs_declares_what_its_user_has_to_give(tmp_path: Path) -> None:
    assert imported("letters", tmp_path).send.credentials == ("mail",)


async def test_what_the_wire_of_the_readme_has_done_is_known_after_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert await imported("steps", tmp_path).wire.function(20, key="s/t/1-1") == "wired 20"
    afterwards = imported("steps", tmp_path).wire.reconcile
    assert (afterwards("s/t/1-1"), afterwards("s/t/1-2")) == ("wired 20", None)


async def test_the_asgi_application_of_the_readme_answers_under_its_path(tmp_path: Path) -> None:
    module = imported("app_asgi", tmp_path)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(module.app), base_url="http://app") as http:
        answer = await http.post("/api/agent/v1/sessions/s/turns", json=TURN, headers=CALLER)
    await module.face.close()
    assert "event: turn.completed" in answer.text


def test_the_flask_application_of_the_readme_answers_under_its_path(tmp_path: Path) -> None:
    module = imported("app_flask", tmp_path)
    with module.app.test_client().post("/api/agent/v1/sessions/s/turns", json=TURN, headers=CALLER) as answer:
        assert "event: turn.completed" in answer.text
    module.face.close()


def test_the_flask_function_of_the_readme_answers_both_old_and_new(tmp_path: Path) -> None:
    module, app = imported("function_flask", tmp_path), flask.Flask("function")
    app.add_url_rule("/<path:path>", view_func=lambda path: module.function(flask.request), methods=["GET", "POST"])
    with app.test_client() as http:
        assert http.get("/old").text == "what it has always answered"
        assert "event: turn.completed" in http.post("/v1/sessions/s/turns", json=TURN, headers=CALLER).text
    module.LEGATO.close()


async def test_the_client_of_the_readme_gets_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, journal: str
) -> None:
    monkeypatch.chdir(tmp_path)
    async with asyncio.timeout(60), Dev(0, 1, {**os.environ, "LEGATO_JOURNAL": journal}, print) as dev:
        assert await imported("talk", tmp_path).talk(dev.url) == "Hello "


async def test_the_answer_of_the_readme_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, journal: str) -> None:
    monkeypatch.chdir(tmp_path)
    answer, env = imported("answer", tmp_path).answer, {**os.environ, "LEGATO_JOURNAL": journal}
    async with (
        asyncio.timeout(60),
        Dev(0, 1, env, print) as dev,
        LegatoClient(dev.url, "dev:me") as client,
        client.turn("s_1", '/tool wire {"amount": 5}') as run,
    ):
        async for _ in run:
            await answer(client, run)
    assert run.status == "completed"


def test_every_setting_is_in_the_readme_with_its_default() -> None:
    listed = dict(re.findall(r"^\| `([A-Z_]+)` \| (?:`(.*?)` )?\|", README, re.MULTILINE))
    fields = Settings.model_fields.items()
    assert listed == {
        str(field.validation_alias or f"LEGATO_{name.upper()}"): f"{field.default}" for name, field in fields
    }


def test_every_command_of_the_readme_is_one() -> None:
    assert set(re.findall(r"^\| `legato (\w+)", README, re.MULTILINE)) == set(main.commands)


def test_the_reducers_table_in_the_protocol_is_its_table() -> None:
    said: dict[str, dict[str, str]] = {status: {} for status in TRANSITIONS}
    for statuses, kinds, becomes in re.findall(r"^\| (`[a-z`, ]+`) \| (`.*?`) \| `(\w+)` \|$", PROTOCOL, re.MULTILINE):
        for status in re.findall(r"\w+", statuses):
            patterns = re.findall(r"`(.*?)`", kinds)
            named = [kind for kind in TRANSITIONS["streaming"] if any(fnmatch(kind, pattern) for pattern in patterns)]
            said[status] |= dict.fromkeys(named, becomes)
    assert said == TRANSITIONS


def test_every_error_that_answers_a_request_is_in_the_protocol_with_its_status() -> None:
    paragraph = re.findall(r"^Codes: .*?\n\n", PROTOCOL, re.MULTILINE | re.DOTALL)[0]
    said = {
        (code, int(status))
        for codes, status in re.findall(r"(.*?)\b([45]\d\d)\b", paragraph, re.DOTALL)
        for code in re.findall(r"`(\w+)`", codes)
    }
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.LegatoError)]
    answers = {(kind.code, status_of(kind)) for kind in kinds}
    assert {(code, status) for code, status in answers if status != 500} <= said


@pytest.mark.parametrize(("document", "least"), [("PROTOCOL.md", 150), ("SECURITY.md", 50)])
def test_every_test_that_a_document_names_exists(document: str, least: int) -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", (ROOT / document).read_text())
    assert len(named) >= least
    missing = [name for path, name in named if f"def {name}(" not in (ROOT / "tests" / path).read_text()]
    assert not missing


def test_every_threat_names_what_stops_it_and_the_test_that_holds_it() -> None:
    rows = [row.strip("| ").split(" | ") for row in SECURITY.splitlines() if row.startswith("| ")]
    assert rows[0] == ["threat", "what stops it", "held by"]
    assert len(rows) > 20
    assert not [row for row in rows[1:] if len(row) != 3 or "::test_" not in row[2]]


def test_every_case_that_the_protocol_names_exists() -> None:
    named = re.findall(r"`(cases/\w+/\w+\.json)`: ([^;|)]+)", PROTOCOL)
    assert named
    for path, names in named:
        cases = {case["name"] for case in json.loads((ROOT / "tests" / path).read_text())}
        assert set(re.findall(r"“(.*?)”", names)) <= cases, path


def test_every_must_of_the_protocol_names_what_holds_it() -> None:
    rows = [row for row in PROTOCOL.splitlines() if "MUST" in row]
    assert rows
    assert not [row for row in rows if not row.startswith("|") or not re.search(r"::test_|cases/", row)]
