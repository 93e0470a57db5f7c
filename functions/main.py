"""The deployables. Each is built by its first request: a server imports this file, then forks."""

from __future__ import annotations

from typing import cast

import flask
import functions_framework.aio
from starlette.requests import Request
from starlette.responses import Response

from legato.app import App, build, collect_rarely
from legato.http.asgi import AsgiFace
from legato.http.flask import FlaskFace
from legato.http.sweep import handle_sweep
from legato.http.under_gthread import drain_under_gthread, spare_under_gthread
from legato.http.under_uvicorn import drain_under_uvicorn
from legato.settings import read_settings

SETTINGS = read_settings()


def _build() -> App:
    app = build(SETTINGS)
    collect_rarely()
    return app


ASGI, FLASK = AsgiFace(_build), FlaskFace(_build)
SWEEP = AsgiFace(_build, handle=handle_sweep)
drain_under_uvicorn(SETTINGS.drain, ASGI, SWEEP)
drain_under_gthread(SETTINGS.drain, FLASK)
spare_under_gthread(FLASK)


@functions_framework.aio.http
async def gateway(request: Request) -> Response:
    """The default: ASGI, one event loop for everything."""
    return cast(Response, ASGI)  # the framework calls what it is given, as it would any ASGI application


def gateway_flask(request: flask.Request) -> flask.Response:
    """For functions that are Flask: a thread for each stream."""
    return FLASK(request)


@functions_framework.aio.http
async def sweep(request: Request) -> Response:
    """For a scheduler, and for nobody else: who may call is the platform's to say."""
    return cast(Response, SWEEP)
