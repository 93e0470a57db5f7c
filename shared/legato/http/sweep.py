"""The HTTP side of the sweeper: one POST is one sweep. Who may call is the platform's to decide."""

from __future__ import annotations

from typing import Protocol

from legato.http.api import Served, failed
from legato.http.message import Answer, Request, json_answer
from legato.http.problems import Unserved
from legato.http.seat import Seat
from legato.sweeper import Sweeper


class Sweeping(Served, Protocol):
    @property
    def sweeper(self) -> Sweeper: ...


async def handle_sweep(served: Sweeping, request: Request, _: Seat) -> Answer:
    """The figures of one sweep as JSON, once it is over; it never raises. What a scheduler sends along is not read."""
    return (await _answer(served.sweeper, request)).plus({"Legato-Instance": served.instance})


async def _answer(sweeper: Sweeper, request: Request) -> Answer:
    try:
        if request.method != "POST":
            raise Unserved(405, "method_not_allowed", "a sweep is a POST", {"Allow": "POST"})
        return json_answer(200, (await sweeper.sweep()).figures())
    except Exception as error:
        return failed(request, error)
