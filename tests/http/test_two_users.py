"""Another's ids are as good as none, on every route, each of them and all together: no byte more, and no moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import chain, combinations
from pathlib import Path
from random import Random
from statistics import median
from typing import Any
from uuid import uuid4

import httpx
import pytest

from harness import Caller, Server
from http_raw import refused
from legato.http.api import ROUTES
from legato.http.bodies import AuthBody, CancelBody, DecisionBody, StartBody, SupplyBody
from legato.http.routing import Route

Ids = Mapping[str, str]
SECRET = "sesame"
BODIES: Mapping[type | None, Callable[[Ids], Any]] = {
    None: lambda ids: None,
    AuthBody: lambda ids: {"stream": ids["stream"]},
    CancelBody: lambda ids: {},
    DecisionBody: lambda ids: {"approved": True},
    StartBody: lambda ids: {"input": "/say 1", "turn": ids["turn"], "if_active": "interrupt"},
    SupplyBody: lambda ids: {"value": "open"},
}
PRIVATE = sorted((route for route in ROUTES if route.private), key=lambda route: route.operation.body is StartBody)
"""Starts are last: each makes a session for who asks."""


def invented(request: str) -> dict[str, str]:
    return {name: f"{name}-{uuid4().hex}" for name in ("session", "turn", "stream", "name")} | {"request": request}


def taken(route: Route) -> set[str]:
    """The ids that the route takes, wherever they stand."""
    path = {name for name in ("session", "turn", "request", "name") if f"{{{name}}}" in route.template}
    turns = {"turn"} if "turn" in route.operation.query or route.operation.body is StartBody else set()
    streams = {"stream"} if route.operation.body is AuthBody else set()
    return path | turns | streams


def swaps(route: Route) -> list[tuple[str, ...]]:
    names = sorted(taken(route))
    return [*chain.from_iterable(combinations(names, n) for n in range(1, len(names) + 1))]


SWAPPED = [(route, swapped) for route in PRIVATE for swapped in swaps(route)]


async def ask(caller: Caller, route: Route, ids: Ids) -> httpx.Response:
    query = f"?turn={ids['turn']}" if "turn" in route.operation.query else ""
    body = BODIES[route.operation.body](ids)
    return await caller.request(route.method, route.template.format(**ids) + query, body, Accept="application/json")


def stated(route: Route, swapped: tuple[str, ...]) -> tuple[int, str | None]:
    """What is started or cancelled is one's own, whatever its name; of anything else there is nothing."""
    if route.operation.body in {StartBody, CancelBody}:
        return 202, None
    return (410, "turn_gone") if "turn" in swapped and "session" not in swapped else (404, "not_found")


async def answered(caller: Caller, route: Route, ids: Ids) -> tuple[tuple[int, str | None], str]:
    """Status and code, and the text without the ids that were in the request."""
    answer = await ask(caller, route, ids)
    text = answer.text
    for name, value in ids.items():
        text = text.replace(value, f"<{name}>")
    return (answer.status_code, answer.json().get("code")), text


async def wrong_answers(caller: Caller, his: Ids, hers: Ids) -> list[Any]:
    """The requests that are answered in another way with her ids than with such as nobody has, or than is stated."""
    wrong = []
    for route, swapped in SWAPPED:
        nobodys = invented("3-1-1")
        got, nothing = [
            await answered(caller, route, {**his, **{name: others[name] for name in swapped}})
            for others in (hers, nobodys)
        ]
        secrets = (SECRET, hers["session"], hers["turn"], hers["stream"])
        if got != nothing or got[0] != stated(route, swapped) or any(secret in got[1] for secret in secrets):
            wrong.append((route.method, route.template, swapped, got, nothing))
    return wrong


async def asks(caller: Caller, ids: Ids, before: str = "") -> None:
    """That session, its turn waiting for an answer to that request."""
    async with caller.start(ids["session"], f'{before}/tool wire {{"amount": 1}}', ids["turn"]) as answer:
        await answer.until("approval.requested")


async def test_no_id_of_another_gives_more_than_one_that_never_was(served: Server) -> None:
    ann, bob = (served.caller(f"{name}-{uuid4().hex}") for name in ("ann", "bob"))
    hers, his = invented("2-1-1"), invented("1-1-1")
    await asks(ann, hers, f'{SECRET}\n/tool lookup {{"key": "a"}}\n')
    await asks(bob, his)
    before = (await ann.snapshot(hers["session"])).text
    assert SECRET in before
    assert not await wrong_answers(bob, his, hers)
    assert (await ann.snapshot(hers["session"])).text == before


async def test_no_credential_of_another_can_be_given_more_than_one_that_nobody_asked_for(served: Server) -> None:
    ann, bob = (served.caller(f"{name}-{uuid4().hex}") for name in ("ann", "bob"))
    hers, his = {**invented("9-1-1"), "name": "mail"}, invented("1-1-1")
    async with ann.start(hers["session"], f'{SECRET}\n/tool mail {{"to": "eve"}}', hers["turn"]) as answer:
        await answer.until("credential.required")
    await asks(bob, his)
    before = (await ann.snapshot(hers["session"])).text
    assert not await wrong_answers(bob, his, hers)
    assert (await ann.snapshot(hers["session"])).text == before


async def test_no_stream_of_another_is_more_than_one_that_never_was(served: Server) -> None:
    name = f"ann-{uuid4().hex}"
    soon, late = (served.caller(f"{name}:{int((time.time() + seconds) * 1000)}") for seconds in (2, 600))
    bob, hers, his = served.caller(f"bob-{uuid4().hex}"), invented("9-1-1"), invented("1-1-1")
    await asks(bob, his)
    async with soon.start(hers["session"], f"{SECRET}\n/sleep 60", hers["turn"]) as answer:
        await answer.until("auth.expiring")
        hers["stream"] = answer.headers["legato-stream"]
        path = f"/v1/sessions/{hers['session']}/auth"
        assert (await late.request("POST", path, {"stream": hers["stream"]})).status_code == 204
        assert not await wrong_answers(bob, his, hers)
        await late.cancel(hers["session"], hers["turn"])
        assert (await answer.until("turn.interrupted"))[-1].event == "turn.interrupted"


@pytest.mark.parametrize("route", PRIVATE, ids=lambda route: f"{route.method} {route.template}")
async def test_who_does_not_say_who_calls_is_told_nothing(served: Server, route: Route) -> None:
    refused(await ask(served.caller(""), route, invented("1-1-1")), 401, "unauthorized")


async def test_no_moment_tells_what_another_has_from_what_nobody_has(journal_url: str, tmp_path: Path) -> None:
    """Asked in pairs, either first: what else the machine does slows both of a pair, and the middle pair tells."""
    ids = {"hers": invented("1-1-1"), "nobodys": invented("1-1-1")}
    took: dict[str, list[float]] = {whose: [] for whose in ids}
    async with Server(journal_url, tmp_path / "log") as server, client(server) as bob:
        await asks(server.caller("ann"), ids["hers"])
        for pair in (Random(number).sample([*ids], 2) for number in range(120)):
            for whose in pair:
                began = time.perf_counter()
                assert (await bob.get(f"/v1/sessions/{ids[whose]['session']}")).status_code == 404
                took[whose].append(time.perf_counter() - began)
    apart = median(hers - nobodys for hers, nobodys in zip(took["hers"], took["nobodys"], strict=True))
    assert abs(apart) < median(took["nobodys"]) / 4


def client(server: Server) -> httpx.AsyncClient:
    """Bob's, on one connection."""
    headers = {"Authorization": "Bearer dev:bob", "Accept": "application/json"}
    return httpx.AsyncClient(base_url=server.url, headers=headers, trust_env=False, timeout=30)
