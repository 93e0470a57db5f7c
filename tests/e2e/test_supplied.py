"""A turn waits for what only its user can give: whoever dies meanwhile, it is used once, and never told."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from commands import Command
from conftest import Place
from harness import Caller, Face
from harness.server import KEY
from legato.cli import JOURNAL
from legato.dev.keys import key_file

SECRET = "correct-horse-battery-staple"
SCRIPT = '/say 2\n/tool mail {"to": "bob"}\n/say 2'
ANSWER = "w1 w2 w3 w4 "
WAITS = SCRIPT + '\n/tool wire {"amount": 5}'
TWICE = '/tool mail {"to": "a"}\n/tool wire {"amount": 5}\n/tool mail {"to": "b"}'
REQUEST = "2-1-1"
OTHER_KEY = KEY.replace("a", "b")


@pytest.fixture(params=["asgi"])
def face(request: pytest.FixtureRequest) -> Face:
    """What happens to a turn does not depend on the face; the suites of the faces hold that."""
    chosen: Face = request.param
    return chosen


async def asked(caller: Caller, session: str, script: str = SCRIPT) -> None:
    """Starts a turn that comes to wait."""
    async with caller.start(session, script, "t") as stream:
        await stream.rest()
    assert [message.event for message in stream.messages[-2:]] == ["turn.suspended", "stream.closing"]


async def given(caller: Caller, session: str) -> list[str]:
    """Supplies what the turn waits for, and follows it from there."""
    return await answered(caller, f"/v1/sessions/{session}/turns/t/credentials/mail", {"value": SECRET})


async def approved(caller: Caller, session: str) -> list[str]:
    return await answered(caller, f"/v1/sessions/{session}/turns/t/approvals/{REQUEST}", {"approved": True})


async def answered(caller: Caller, path: str, body: dict[str, Any]) -> list[str]:
    async with caller.open("POST", path, body=body, headers={"Accept": "text/event-stream"}) as stream:
        await stream.rest()
    return [event["type"] for event in stream.events]


async def ended(caller: Caller, session: str) -> dict[str, Any]:
    """The turn in a snapshot, after its end."""
    async with caller.events(session, turn="t") as stream:
        await stream.rest()
    fields: dict[str, Any] = (await caller.snapshot(session)).json()["turns"][-1]
    return fields


def sent(place: Place, session: str) -> int:
    """How often the tool ran in the session."""
    lines = place.ledger.read_text().splitlines() if place.ledger.exists() else []
    return sum(f'"{session}/' in line for line in lines)


async def everything(place: Place) -> str:
    """All that is stored, of everybody."""
    if place.journal.startswith("sqlite"):
        return "".join(path.read_text(errors="replace") for path in place.directory.glob("journal.sqlite*"))
    project, emulator = place.journal.split("/")[2], os.environ["FIRESTORE_EMULATOR_HOST"]
    url = f"http://{emulator}/v1/projects/{project}/databases/(default)/documents:runQuery"
    query = {"structuredQuery": {"from": [{"allDescendants": True}]}}
    async with httpx.AsyncClient(trust_env=False, verify=False, headers={"Authorization": "Bearer owner"}) as http:
        return (await http.post(url, json=query)).raise_for_status().text


async def test_it_is_supplied_after_every_instance_was_restarted(place: Place) -> None:
    async with place.server("a") as a, place.server("b") as b:
        await asked(a.caller(), "s")
        for server in (a, b):
            server.kill9()
        await asyncio.gather(a.start(), b.start())
        assert (await b.caller().supply("s", "t", "mail", SECRET)).status_code == 202
        turn = await ended(a.caller(), "s")
    assert (turn["status"], turn["output"], sent(place, "s")) == ("completed", ANSWER, 1)


async def test_who_is_killed_right_after_it_took_it_loses_nothing(place: Place) -> None:
    """Whatever of the way from the answer to the tool it had come."""
    lease = {"LEGATO_LEASE": "1.5"}
    async with place.server("a", **lease) as a, place.server("b", **lease) as b:
        for number in range(3):
            session = f"s{number}"
            await asked(b.caller(), session)
            assert (await a.caller().supply(session, "t", "mail", SECRET)).status_code == 202
            await asyncio.sleep(number * 0.01)
            a.kill9()
            turn = await ended(b.caller(), session)
            assert (turn["status"], turn["output"], sent(place, session)) == ("completed", ANSWER, 1)
            await a.start()


async def test_a_turn_that_is_cancelled_while_it_waits_uses_nothing(place: Place) -> None:
    async with place.server("a") as a, place.server("b") as b:
        await asked(a.caller(), "s")
        assert (await b.caller().cancel("s", "t")).status_code == 202
        turn = await ended(a.caller(), "s")
        late = await a.caller().supply("s", "t", "mail", SECRET)
    assert (turn["status"], late.status_code, sent(place, "s")) == ("interrupted", 409, 0)


@pytest.mark.parametrize("end", ["deny", "cancel", "delete"])
async def test_it_is_nowhere_in_the_store_or_a_log_and_gone_with_the_turn(place: Place, end: str) -> None:
    async with place.server("a") as a, place.server("b") as b:
        await asked(a.caller(), "s", WAITS)
        assert (await given(b.caller(), "s"))[-2:] == ["approval.requested", "turn.suspended"]
        stored = await everything(place)
        if end == "deny":
            await a.caller().decide("s", "t", REQUEST, False)
        elif end == "cancel":
            await a.caller().cancel("s", "t")
        else:
            await a.caller().request("DELETE", "/v1/sessions/s")
        if end != "delete":
            await ended(a.caller(), "s")
        left = await everything(place)
        logs = a.output() + b.output()
    assert "credential.mail" in stored
    assert SECRET not in stored + left + logs
    assert KEY not in stored + left + logs
    if place.journal.startswith("firestore"):
        assert "t.credential.mail" not in left


async def test_a_key_is_replaced_by_one_put_before_it_and_one_taken_away_has_it_asked_for_again(place: Place) -> None:
    async with place.server("a") as old:
        await asked(old.caller(), "s", TWICE)
        await given(old.caller(), "s")
    async with place.server("b", LEGATO_CREDENTIAL_KEYS=f"{OTHER_KEY} {KEY}") as both:
        assert (await approved(both.caller(), "s"))[-1] == "turn.completed"
        await asked(both.caller(), "u", TWICE)
        await given(both.caller(), "u")
    async with place.server("c") as new:
        assert (await approved(new.caller(), "u"))[-2:] == ["credential.required", "turn.suspended"]
        assert (await given(new.caller(), "u"))[-1] == "turn.completed"
    assert (sent(place, "s"), sent(place, "u")) == (3, 3)


async def test_the_laptops_workers_share_a_key_that_outlives_them(tmp_path: Path) -> None:
    for resumed in (False, True):
        with Command(tmp_path, "dev", "--port", "0") as dev:
            await dev.says("Ctrl-C")
            caller = Caller(dev.output.split(" at ")[1].split()[0])
            if resumed:
                assert (await approved(caller, "s"))[-1] == "turn.completed"
            else:
                await asked(caller, "s", TWICE)
                await given(caller, "s")
    assert key_file(JOURNAL).name in os.listdir(tmp_path / ".legato")
