"""Which calls of a turn are not allowed, before anybody knows of them: a refusal is durable with its call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from legato.engine.calls import Calls, Intent
from legato.events import ToolCall, ToolResult
from legato.principal import Principal
from legato.signature import BadArguments
from legato.tools import Outcome

FORBIDDEN: Final = Outcome.failed("forbidden", "the call is not allowed for this user with these arguments")


async def judged(calls: Calls, principal: Principal, new: Sequence[Intent]) -> list[ToolCall | ToolResult]:
    """What the journal is to have of new calls, in one Commit: each call, and the result of those not allowed."""
    calls.start_work()
    try:
        await asyncio.gather(*(_judge(principal, intent) for intent in new))
    finally:
        calls.end_work()
    refused = [ToolResult(call=each.call.call, ok=False, error=each.outcome.error) for each in new if each.outcome]
    return [*(intent.call for intent in new), *refused]


async def _judge(principal: Principal, intent: Intent) -> None:
    if intent.tool is None or intent.problem:
        return
    try:
        if not await intent.tool.allows(principal, intent.call.arguments):
            intent.outcome = FORBIDDEN
    except BadArguments as wrong:
        intent.problem = str(wrong)
