"""After: the same function. The answer is a turn that cannot be lost, and the table is booked once."""

import os

import flask
import functions_framework

from legato import Agent, tool
from legato.app import build
from legato.http.flask import FlaskFace
from legato.models.gemini import Gemini
from legato.settings import read_settings


def booked(key: str) -> str | None:
    """What became of a booking whose instance was lost."""
    with open(os.environ["BOOKINGS"], "a+") as bookings:
        bookings.seek(0)
        return next((line for line in bookings if line.startswith(f"{key} ")), None)


@tool(effect="once", timeout=5, reconcile=booked)
def book(table: int, *, key: str) -> str:
    """Books a table."""
    with open(os.environ["BOOKINGS"], "a") as bookings:
        bookings.write(f"{key} table {table}\n")
    return f"table {table} is booked"


agent = Agent(model=Gemini("gemini-2.5-flash"), tools=[book])
face = FlaskFace(lambda: build(read_settings()))


@functions_framework.http
def chat(request: flask.Request) -> flask.typing.ResponseReturnValue:
    return face(request)
