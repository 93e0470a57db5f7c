"""Other origins are served when they are listed, and only then."""

from __future__ import annotations

import pytest

from legato.errors import SettingsError
from legato.http import cors
from legato.http.message import Request
from legato.settings import read_settings

LISTED = "https://app.example.com https://*.example.org https://shop--*.web.app http://localhost:5173"


def granted(origin: str) -> str | None:
    headers = cors.headers(LISTED, Request("GET", "/", headers={"origin": origin}))
    assert headers["Vary"] == "Origin"
    return headers.get("Access-Control-Allow-Origin")


@pytest.mark.parametrize(
    "origin",
    ["https://app.example.com", "https://a-1.example.org", "https://shop--pr7-x9.web.app", "http://localhost:5173"],
)
def test_a_listed_origin_is_granted_by_its_own_name(origin: str) -> None:
    assert granted(origin) == origin


@pytest.mark.parametrize(
    "origin",
    [
        "",
        "null",
        "http://app.example.com",
        "https://app.example.com:8443",
        "https://app.example.com.evil.net",
        "https://appxexample.com",
        "https://a.b.example.org",
        "https://example.org",
        "https://.example.org",
        "https://evil.net/.example.org",
        "https://evil.net#.example.org",
        "https://shop--a.b.web.app",
        "https://other--x.web.app",
        "https://a.example.org\n",
    ],
)
def test_any_other_origin_is_not(origin: str) -> None:
    assert granted(origin) is None


def test_a_preflight_names_what_may_be_sent() -> None:
    asked = {"origin": "https://app.example.com", "access-control-request-method": "POST"}
    answer = cors.preflight(LISTED, Request("OPTIONS", "/v1/sessions/s/turns", headers=asked))
    assert answer is not None
    assert answer.status == 204
    assert answer.headers["Access-Control-Allow-Methods"] == "GET, POST, DELETE"
    allowed = answer.headers["Access-Control-Allow-Headers"].split(", ")
    assert {"Last-Event-ID", "Idempotency-Key", "Authorization", "X-Firebase-AppCheck", "Content-Type"} <= {*allowed}


def test_a_preflight_of_another_origin_is_told_nothing() -> None:
    asked = {"origin": "https://evil.net", "access-control-request-method": "POST"}
    answer = cors.preflight(LISTED, Request("OPTIONS", "/", headers=asked))
    assert answer is not None
    assert not answer.headers


def test_a_plain_options_request_is_no_preflight() -> None:
    assert cors.preflight(LISTED, Request("OPTIONS", "/", headers={"origin": "https://app.example.com"})) is None


@pytest.mark.parametrize(
    "origins",
    ["*", "https://*", "https://*.com", "https://a.*.com", "https://*.*.a.com", "https://a.com/", "https://a.com/x",
     "https://a.com:443", "http://a.com:80", "null", "a.com", "https://A.com", "https://a..com", "https://-a.com",
     "https://ok.com ftp://a.com", "https://u@a.com"],
)  # fmt: skip
def test_a_setting_that_is_no_list_of_origins_stops_the_start(origins: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEGATO_ORIGINS", origins)
    with pytest.raises(SettingsError, match=r"LEGATO_ORIGINS=.*expected origins as browsers send them"):
        read_settings()


@pytest.mark.parametrize("origins", ["", LISTED, "http://127.0.0.1:3000 http://[::1]:3000 https://a.com"])
def test_a_setting_that_lists_origins_is_taken(origins: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEGATO_ORIGINS", origins)
    assert read_settings().origins == origins
