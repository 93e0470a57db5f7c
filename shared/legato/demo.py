"""The demo agent: the scripted model and tools of every kind. Needs no key and obeys what `models.scripted` reads."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, Field, TypeAdapter

from legato.agents.loop import Agent
from legato.errors import ToolFailed
from legato.models.scripted import ScriptedModel
from legato.tools import ToolContext, tool

_DEFAULT_LEDGER: Final = ".legato/ledger.jsonl"
Seconds = Annotated[float, Field(ge=0, le=3600)]


class Entry(BaseModel):
    """A line of the ledger: an amount transferred, and the key of the call that did it."""

    key: str
    amount: int


class Letter(BaseModel):
    """A line of the ledger: whom a mail was sent to, and the key of the call that did it."""

    key: str
    to: str


_LINE: Final[TypeAdapter[Entry | Letter]] = TypeAdapter(Entry | Letter)


def _ledger() -> Path:
    return Path(os.environ.get("LEGATO_DEMO_LEDGER") or _DEFAULT_LEDGER)


def _enter(entry: Entry | Letter) -> None:
    """Appends one whole line, however many processes do so at once."""
    path = _ledger()
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)
    try:
        os.write(file, entry.model_dump_json().encode() + b"\n")
    finally:
        os.close(file)


def entered(key: str) -> Entry | Letter | None:
    """The ledger's line of that key: what became of a call in doubt."""
    path = _ledger()
    lines = path.read_text().splitlines() if path.exists() else []
    return next((entry for entry in map(_LINE.validate_json, lines) if entry.key == key), None)


@tool(effect="read")
def lookup(key: str) -> dict[str, str]:
    """Looks a key up."""
    return {"key": key, "value": f"the value of {key}"}


@tool(effect="idempotent", timeout=3700)
async def slow(seconds: Seconds, *, turn: ToolContext) -> dict[str, float]:
    """Takes its time, silent between its first and its last report."""
    turn.progress(f"working for {seconds:g} s", 0)
    await asyncio.sleep(seconds)
    turn.progress("done", 1)
    return {"seconds": seconds}


@tool(effect="once", timeout=5, reconcile=entered)
async def transfer(amount: int, seconds: Seconds = 0, *, key: str) -> Entry:
    """Transfers an amount, once."""
    await asyncio.sleep(seconds)
    entry = Entry(key=key, amount=amount)
    _enter(entry)
    return entry


@tool(approval=lambda arguments: f"Wire {arguments.get('amount')}?")
async def wire(amount: int, *, key: str) -> Entry:
    """Wires an amount once, when a person has approved it. Nobody can tell afterwards whether it was done."""
    entry = Entry(key=key, amount=amount)
    _enter(entry)
    return entry


@tool(effect="once", timeout=5, reconcile=entered, credentials=("mail",))
async def mail(to: Annotated[str, Field(max_length=200)], *, key: str, turn: ToolContext) -> Letter:
    """Sends a mail, once, with what its user gives for `mail`: any word but `wrong` will do."""
    if await turn.credentials("mail") == "wrong":
        raise ToolFailed("credential_rejected", "the mail server does not take it")
    letter = Letter(key=key, to=to)
    _enter(letter)
    return letter


@tool(effect="read")
def big(bytes: Annotated[int, Field(ge=0, le=64 * 1024 * 1024)]) -> str:  # noqa: A002 - the contract names it so
    """Gives back that many bytes."""
    return "x" * bytes


agent = Agent(
    model=ScriptedModel(),
    tools=[lookup, slow, transfer, wire, mail, big],
    instructions="Follow the script in the user's input.",
    max_steps=1000,
    name="demo",
)
