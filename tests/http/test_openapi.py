"""Requests made of the document, good and bad ones: each answer is one that it knows, and none is an accident."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.openapi import from_dict
from schemathesis.specs.openapi.checks import positive_data_acceptance

from harness import Server
from harness.documented import DOCUMENT
from legato.http.api import ROUTES
from legato.http.operations import LONGEST_WAIT
from legato.http.routing import Route

SCHEMA = from_dict(DOCUMENT)
SCRIPTS = {
    "ended": "/say 1",
    "asks": '/tool wire {"amount": 1}',
    "requires": '/tool mail {"to": "eve"}',
    "runs": "/sleep 5",
}
IDS = {
    "session": [*SCRIPTS, "none"],
    "turn": ["t1", "t2"],
    "request": ["1-1-1", "1-1-2"],
    "name": ["mail", "bank"],
}
LONG = 0.2
STREAMS_END = {"LEGATO_PING": "0.1", "LEGATO_DEADLINE": "0.2"}


@pytest.fixture(scope="module", params=["asgi", "flask"])
def brief(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose streams end by themselves soon."""
    directory = tmp_path_factory.mktemp(request.param)
    server = Server(f"sqlite:///{directory}/journal.sqlite", directory / "log", request.param, STREAMS_END)
    asyncio.run(server.start())
    yield server
    asyncio.run(server.__aexit__())


@pytest.fixture
async def name(brief: Server) -> str:
    """A caller who has a session with a turn that ended, one whose turn waits for either, and one whose turn runs."""
    name = uuid4().hex
    caller = brief.caller(name)
    for session, script in SCRIPTS.items():
        await caller.begin(session, script, "t1")
    return name


def cases(route: Route, mode: GenerationMode) -> st.SearchStrategy[Case[Any]]:
    """Half of the good ones are about something that is there."""
    operation = SCHEMA[route.template][route.method]
    made = operation.as_strategy(generation_mode=mode)
    ids = {name: st.sampled_from(IDS[name]) for name in re.findall(r"{(\w+)}", route.template)}
    if ids and mode is GenerationMode.POSITIVE:
        made |= st.fixed_dictionaries(ids).flatmap(lambda known: operation.as_strategy(path_parameters=known))
    return made.filter(_arrives).map(_soon)


def _arrives(case: Case[Any]) -> bool:
    """A line break in the path stops at the framework's own router."""
    return not any("\n" in str(value) for value in (case.path_parameters or {}).values())


def _soon(case: Case[Any]) -> Case[Any]:
    """Nobody waits for long."""
    wait = case.query.get("wait") if case.query else None
    if isinstance(wait, int | float) and LONG < wait <= LONGEST_WAIT:
        case.query["wait"] = LONG
    return case


def modes(route: Route) -> list[GenerationMode]:
    """Where nothing is taken, nothing can be wrong with it."""
    takes = "{" in route.template or route.operation.query or route.operation.headers or route.operation.body
    return [*GenerationMode] if takes else [GenerationMode.POSITIVE]


@pytest.mark.parametrize(
    ("route", "mode"),
    [(route, mode) for route in ROUTES for mode in modes(route)],
    ids=lambda given: f"{given.method} {given.template}" if isinstance(given, Route) else given.value,
)
def test_no_request_is_answered_with_an_accident_or_with_what_the_document_does_not_know(
    route: Route, mode: GenerationMode, brief: Server, name: str
) -> None:
    """A good request may be refused all the same: no schema says which agents there are, or which turn is whose."""

    @settings(max_examples=25, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(cases(route, mode))
    def ask(case: Case[Any]) -> None:
        headers = {"Authorization": f"Bearer dev:{name}"} if route.private else {}
        response = case.call(base_url=brief.url, headers=headers, timeout=20)
        case.validate_response(response, excluded_checks=[positive_data_acceptance])

    ask()
    assert "Traceback" not in brief.output()
