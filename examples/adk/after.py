"""After: the same agent. Its turns outlive any instance, its tools run once, its confirmations wait for as long as it
takes, and its session is where its turns are."""

import flask
import functions_framework

from adk.bank import root_agent
from legato.agents.adk import AdkAgent
from legato.app import build
from legato.http.flask import FlaskFace
from legato.settings import read_settings

agent = AdkAgent(root_agent)
face = FlaskFace(lambda: build(read_settings()))


@functions_framework.http
def chat(request: flask.Request) -> flask.typing.ResponseReturnValue:
    return face(request)
