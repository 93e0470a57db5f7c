"""A tool of ADK as a call of the turn: durable before it starts, its result handed to ADK in place of the call."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final

from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event_actions import EventActions
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.adk.tools.tool_context import ToolContext
from google.genai.types import Part
from pydantic import JsonValue
from pydantic_core import to_json

from legato.agents import Call
from legato.agents.adk.entered import Entered, Rule
from legato.errors import ToolFailed
from legato.signature import Unchecked
from legato.text import brief
from legato.tools import Outcome, Tool
from legato.tools import ToolContext as ThisCall

_THIS: Final[ContextVar[ThisCall]] = ContextVar("the call that runs in this task")
_NO_RULE: Final = Rule()
_PART: Final = "legato_part"


def this_call() -> ThisCall:
    """The call that a tool of ADK runs in: its idempotency key, its progress, whether it is cancelled. Raises
    LookupError outside of one."""
    return _THIS.get()


async def call(entered: Entered, tool: BaseTool, arguments: dict[str, Any], context: ToolContext) -> Any:
    """What ADK is to take for the tool's result. Raises what a tool raises that no callback answers, as ToolFailed."""
    try:
        prompt = await _prompt(tool, arguments, context)
    except Exception as error:
        return await _answered(tool, arguments, context, error)
    attempt = _Attempt(tool, context, prompt)
    outcome = await attempt.made(entered, arguments)
    if asked := attempt.asked(outcome):
        context.actions.skip_summarization = None
        attempt = _Attempt(tool, context, asked.hint or _question(tool, arguments), asked)
        outcome = await attempt.made(entered, arguments)
    return await _given(tool, arguments, context, outcome)


class _Attempt:
    """One call of a tool. `prompt` is what a person is asked before it; `confirmation` what the tool itself asked."""

    def __init__(
        self, tool: BaseTool, context: ToolContext, prompt: str | None, confirmation: ToolConfirmation | None = None
    ) -> None:
        self._tool, self._context, self._prompt = tool, context, prompt
        self._confirmation = confirmation or ToolConfirmation()
        self._entered = False

    async def made(self, entered: Entered, arguments: dict[str, Any]) -> Outcome:
        rule = entered.rules.get(self._tool.name, _NO_RULE)
        made = Tool(
            self._tool.name,
            "",
            rule.effect,
            rule.timeout,
            self._body,
            Unchecked.whole(),
            rule.reconcile,
            self._prompt,
            rule.allow,
            tuple(rule.credentials),
        )
        (outcome,) = await entered.turn.calls([Call(made, made.name, arguments)])
        if not self._entered and isinstance(outcome.note, dict):
            _do_again(self._context, outcome.note.get("actions"))
        return outcome

    def asked(self, outcome: Outcome) -> ToolConfirmation | None:
        """The tool asks for a person's confirmation, and is to be called again with it."""
        asked = outcome.note.get("asks") if isinstance(outcome.note, dict) else None
        return ToolConfirmation.model_validate(asked) if asked else None

    async def _body(self, arguments: dict[str, Any], *, turn: ThisCall) -> Any:
        self._entered = True
        if self._prompt is not None:
            self._context.tool_confirmation = self._confirmation.model_copy(update={"confirmed": True})
        _THIS.set(turn)
        raised = False
        try:
            result = await _run(self._tool, arguments, self._context)
        except Exception:
            raised = True
            raise
        finally:
            turn.note(self._note(raised))
        return _told(result)

    def _note(self, raised: bool) -> JsonValue:
        """What the tool leaves besides its result: ADK finds it in the context."""
        asks = self._context.actions.requested_tool_confirmations.pop(self._context.function_call_id or "", None)
        actions = self._context.actions.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
        note: dict[str, JsonValue] = {"raised": raised, "actions": actions}
        if asks:
            note["asks"] = asks.model_dump(mode="json", by_alias=True)
        return {name: value for name, value in note.items() if value} or None


async def _run(tool: BaseTool, arguments: dict[str, Any], context: ToolContext) -> Any:
    work = tool.run_async(args=arguments, tool_context=context)
    if not _in_thread(tool):
        return await work
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})  # nothing stops a thread: as long as it is at work, so is the call
        raise


def _in_thread(tool: BaseTool) -> bool:
    return isinstance(tool, FunctionTool) and not inspect.iscoroutinefunction(inspect.unwrap(tool.func))


async def _prompt(tool: BaseTool, arguments: dict[str, Any], context: ToolContext) -> str | None:
    """What a person is asked first; None where the tool needs no confirmation, or has it."""
    if context.tool_confirmation or not await tool.check_require_confirmation(arguments, context):
        return None
    return _question(tool, arguments)


def _question(tool: BaseTool, arguments: dict[str, Any]) -> str:
    return brief(f"{tool.name}({', '.join(f'{name}={_shown(value)}' for name, value in arguments.items())})?")


def _shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


async def _given(tool: BaseTool, arguments: dict[str, Any], context: ToolContext, outcome: Outcome) -> Any:
    if outcome.error is None:
        return _answer(tool, outcome.content)
    if isinstance(outcome.note, dict) and outcome.note.get("raised"):
        return await _answered(tool, arguments, context, ToolFailed(outcome.error.code, outcome.error.message))
    if outcome.error.code == "denied":
        context.tool_confirmation = ToolConfirmation(confirmed=False)
        return {"error": f"This tool call is rejected: {outcome.error.message}"}
    return {"error": outcome.error.message, "code": outcome.error.code}


def _answer(tool: BaseTool, content: JsonValue) -> Any:
    """As ADK reads it: None would make it run the tool, and what a long-running call does not answer yet is empty."""
    if content is not None:
        return _read(content)
    return {} if tool.is_long_running else {"result": None}


def _told(result: Any) -> Any:
    """A result as it can be recorded: ADK takes parts of the vendor's in it, such as an image, for what they are."""
    match result:
        case Part():
            return {_PART: result.model_dump(mode="json", by_alias=True, exclude_none=True)}
        case dict():
            return {name: _told(value) for name, value in result.items()}
        case list() | tuple():
            return [_told(value) for value in result]
    return result


def _read(content: JsonValue) -> Any:
    match content:
        case {"legato_part": part}:
            return Part.model_validate_json(to_json(part))
        case dict():
            return {name: _read(value) for name, value in content.items()}
        case list():
            return [_read(value) for value in content]
    return content


async def _answered(tool: BaseTool, arguments: dict[str, Any], context: ToolContext, error: Exception) -> Any:
    """What callbacks make of an error, those of plugins first; where they make nothing of it, it is raised."""
    within = context.get_invocation_context()
    answer: Any = await within.plugin_manager.run_on_tool_error_callback(
        tool=tool, tool_args=arguments, tool_context=context, error=error
    )
    own = within.agent.canonical_on_tool_error_callbacks if isinstance(within.agent, LlmAgent) else []
    for callback in own if answer is None else []:
        answer = callback(tool=tool, args=arguments, tool_context=context, error=error)  # type: ignore[call-arg]
        answer = await answer if inspect.isawaitable(answer) else answer
        if answer is not None:
            break
    if answer is None:
        raise error
    return answer


def _do_again(context: ToolContext, recorded: JsonValue) -> None:
    """What the tool did to its session when it ran: its result comes from the journal, and so does this."""
    actions = EventActions.model_validate(recorded or {})
    context.state.update(actions.state_delta)
    for name in actions.model_fields_set - {"state_delta"}:
        value, known = getattr(actions, name), getattr(context.actions, name)
        setattr(context.actions, name, {**known, **value} if isinstance(value, Mapping) and known else value)
