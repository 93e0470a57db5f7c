"""The OpenAPI document says of every route what it takes and gives."""

from __future__ import annotations

import json
import re

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from harness.documented import undocumented
from legato.http.api import ROUTES, handle
from legato.http.message import Request
from legato.http.openapi import document
from legato.http.routing import Route
from legato.http.seat import Seat
from scripted_gateway import Stage

DOCUMENT = document(ROUTES)


def test_the_document_is_one() -> None:
    OpenAPIV31SpecValidator(DOCUMENT).validate()


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.template}")
def test_every_route_is_in_the_document_with_its_ids_and_whether_it_asks_who_calls(route: Route) -> None:
    said = DOCUMENT["paths"][route.template][route.method.lower()]
    ids = [field["name"] for field in said["parameters"] if field["in"] == "path"]
    assert ids == re.findall(r"{(\w+)}", route.template)
    assert bool(said["security"]) == route.private == ("401" in said["responses"])
    assert ("requestBody" in said) == (route.operation.body is not None) == ("415" in said["responses"])


def test_an_answer_is_undocumented_by_its_status_its_type_or_its_code() -> None:
    path, problem = "/v1/sessions/s", "application/problem+json"
    assert undocumented("GET", path, 200, "application/json") is None
    assert undocumented("GET", path, 404, problem, b'{"code": "not_found"}') is None
    assert undocumented("GET", path, 202, "application/json")
    assert undocumented("GET", path, 200, "text/html; charset=utf-8")
    assert undocumented("GET", path, 404, problem, b'{"code": "turn_gone"}')


async def test_the_document_is_served_to_anybody_beside_the_paths_that_it_names() -> None:
    answer = await handle(Stage(), Request("GET", "/openapi.json"), Seat())
    assert isinstance(answer.body, bytes)
    assert (answer.status, json.loads(answer.body)) == (200, DOCUMENT)
    assert DOCUMENT["servers"] == [{"url": "."}]
