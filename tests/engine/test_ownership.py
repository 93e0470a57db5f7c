"""What another has is looked for where nobody's is: the journal is asked the same, and so the answer takes as long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from engine.rig import KEY, Instance, Rig
from legato.agents.loop import Agent
from legato.errors import LegatoError
from legato.events import Cursor
from legato.gateway import Gateway
from legato.journal import SessionKey
from legato.models.scripted import ScriptedModel
from legato.principal import Principal

BOB = Principal("bob")
ASKED: dict[str, Callable[[Gateway, SessionKey], Awaitable[Any]]] = {
    "snapshot": lambda gateway, key: gateway.snapshot(key, None),
    "follow": lambda gateway, key: gateway.follow(key, cursor=Cursor(1, 1), start=False, turn=None),
    "follow a turn": lambda gateway, key: gateway.follow(key, cursor=None, start=False, turn="t1"),
    "poll": lambda gateway, key: gateway.poll(key, cursor=None, start=True, turn="t1", wait=0),
    "decide": lambda gateway, key: gateway.decide(key, "t1", "1-1-1", True, None),
    "cancel": lambda gateway, key: gateway.cancel(key, "t1", "enough", key.uid),
    "prolong": lambda gateway, key: gateway.prolong(key, "st_1", BOB),
    "delete": lambda gateway, key: gateway.delete(key),
}


async def calls(instance: Instance, asked: Callable[[Gateway, SessionKey], Awaitable[Any]], session: str) -> list[str]:
    """What the journal was asked for, and what came of it in the end."""
    instance.journal.calls.clear()
    try:
        outcome = repr(await asked(instance.gateway, SessionKey("bob", session)))
    except LegatoError as refused:
        outcome = refused.code
    return [*instance.journal.calls, outcome]


@pytest.mark.parametrize("name", ASKED)
async def test_what_another_has_costs_the_journal_what_nobodys_costs(rig: Rig, name: str) -> None:
    instance = rig.instance(Agent(model=ScriptedModel()))
    await instance.play("/say 1")
    hers = await calls(instance, ASKED[name], KEY.session)
    assert len(hers) > 1
    assert hers == await calls(instance, ASKED[name], "nobodys")
