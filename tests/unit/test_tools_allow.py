"""`allow` is given what the function would be, and whatever it does but say True refuses."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, JsonValue

from legato import Tool, ToolContext, tool
from legato.principal import Principal
from legato.signature import BadArguments, Unchecked

ANN = Principal("ann")
WRONG: Any = "wrong"


def made(allow: Any) -> Tool:
    @tool(allow=allow)
    async def wire(amount: int, to: Annotated[str, AfterValidator(str.strip)] = "me", *, turn: ToolContext) -> None: ...

    return wire


async def own(principal: Principal, arguments: dict[str, Any]) -> bool:
    return principal.uid == "ann" and arguments["amount"] < 3


def own_sync(principal: Principal, arguments: dict[str, Any]) -> bool:
    return threading.current_thread() is not threading.main_thread() and principal.uid == "ann"


def own_later(principal: Principal, arguments: dict[str, Any]) -> Awaitable[bool]:
    return own(principal, arguments)


@pytest.mark.parametrize("allow", [None, own, own_sync, own_later])
async def test_what_is_allowed_may_be_called(allow: Any) -> None:
    assert await made(allow).allows(ANN, {"amount": 2})


@pytest.mark.parametrize("allow", [own, own_sync, own_later])
async def test_what_is_not_allowed_may_not_be_called(allow: Any) -> None:
    assert not await made(allow).allows(Principal("bob"), {"amount": 2})


async def test_it_is_given_the_arguments_as_the_function_would_be() -> None:
    """Converted and with their defaults: what is judged is what is done."""
    given = list[dict[str, Any]]()

    def allow(_: Principal, arguments: dict[str, Any]) -> bool:
        given.append(arguments)
        return True

    await made(allow).allows(ANN, {"amount": "5", "to": " you "})
    await made(allow).allows(ANN, {"amount": 5})
    assert given == [{"amount": 5, "to": "you"}, {"amount": 5, "to": "me"}]


async def test_what_it_does_to_the_arguments_is_not_done_to_the_call() -> None:
    """Nor where the function takes whatever there is, as ADK's do."""
    arguments: JsonValue = {"amount": 2, "to": {"names": ["ann"]}}

    def allow(_: Principal, given: dict[str, Any]) -> bool:
        given.pop("to")["names"].append("eve")
        return True

    whole = Tool("wire", "", "once", 1, allow, Unchecked.whole(), allow=allow)
    assert await whole.allows(ANN, arguments)
    assert arguments == {"amount": 2, "to": {"names": ["ann"]}}


@pytest.mark.parametrize("given", [1, "yes", None, [True]])
async def test_what_is_no_bool_refuses(given: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert not await made(lambda principal, arguments: given).allows(ANN, {"amount": 2})
    assert "gave no bool" in caplog.text


async def test_an_allow_that_fails_refuses_and_its_words_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    def allow(_: Principal, arguments: dict[str, Any]) -> bool:
        raise KeyError(f"{arguments['to']} is unknown")

    assert not await made(allow).allows(ANN, {"amount": 2, "to": "a-private-name"})
    assert "KeyError" in caplog.text
    assert "a-private-name" not in caplog.text


@pytest.mark.parametrize("escape", [SystemExit, asyncio.CancelledError])
async def test_an_allow_that_exits_refuses_and_ends_no_process(escape: type[BaseException]) -> None:
    """Nor the turn, where what was cancelled is a task of its own."""

    async def allow(_: Principal, arguments: dict[str, Any]) -> bool:
        raise escape

    assert not await asyncio.create_task(made(allow).allows(ANN, {"amount": 2}))


async def test_an_allow_that_is_late_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legato.tools.ALLOW_SECONDS", 0.05)

    async def allow(_: Principal, arguments: dict[str, Any]) -> bool:
        await asyncio.sleep(60)
        return True

    assert not await made(allow).allows(ANN, {"amount": 2})


async def test_arguments_that_do_not_fit_are_not_judged() -> None:
    with pytest.raises(BadArguments):
        await made(lambda principal, arguments: True).allows(ANN, {"amount": "much"})


def test_an_allow_that_is_no_function_is_refused_when_it_is_declared() -> None:
    with pytest.raises(TypeError, match="allow is 'wrong', expected a function"):
        made(WRONG)
