"""Where ADK lets others in: its plugin callbacks. Ours is the last plugin, behind those of the user's."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Final

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.llm_agent import LlmAgent
from google.adk.models.llm_request import LlmRequest
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext

from legato.agents.adk.entered import ASKING, ENTERED, WITHIN, Asking, step_name
from legato.agents.adk.model import durable
from legato.agents.adk.tools import call

STEERING: Final = frozenset(["transfer_to_agent", "exit_loop", "finish_task", "set_model_response"])
"""ADK's own tools that only tell ADK what to do next."""
ONLOOKERS: Final = ("google.adk.plugins.logging_plugin", "google.adk.plugins.debug_logging_plugin")
"""Plugins that see everything and change nothing."""


class LegatoPlugin(BasePlugin):
    """Makes model calls steps and tools calls of the turn that is run."""

    def __init__(self) -> None:
        super().__init__(name="legato")

    async def before_agent_callback(self, *, agent: BaseAgent, callback_context: CallbackContext) -> None:
        """Whichever agent comes to run: sub-agents, nodes of a workflow and agents used as tools too."""
        if isinstance(agent, LlmAgent):
            agent.model = durable(agent.canonical_model)

    async def before_model_callback(self, *, callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        context = callback_context.get_invocation_context()
        branch = f"@{context.branch}" if context.branch else ""
        aloud = not WITHIN.get() and _unchanged(context.agent, context.plugin_manager.plugins)
        ASKING.set(Asking(step_name(f"{WITHIN.get()}{callback_context.agent_name}{branch}"), aloud))

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> Any:
        """The agent's own callbacks come before the call; what they answer stands in its place."""
        entered = ENTERED.get()
        assert entered, "the plugin is only in Runners of AdkAgent"
        if _steers(tool):
            WITHIN.set(f"{WITHIN.get()}{tool_context.function_call_id}/")
            return None
        agent = tool_context.get_invocation_context().agent
        own = agent.canonical_before_tool_callbacks if isinstance(agent, LlmAgent) else []
        for callback in own:
            answer = callback(tool=tool, args=tool_args, tool_context=tool_context)  # type: ignore[call-arg]
            answer = await answer if inspect.isawaitable(answer) else answer
            if answer is not None:
                return answer
        return await call(entered, tool, tool_args, tool_context)


def _steers(tool: BaseTool) -> bool:
    """It is run again each time: it has no effect of its own, what it runs is made of steps and calls, or there is no
    such tool."""
    if isinstance(tool, AgentTool):
        return tool.include_plugins
    return tool.name in STEERING or type(tool) is BaseTool


def _unchanged(agent: object, plugins: Sequence[BasePlugin]) -> bool:
    """Nobody stands between the model and what is said."""
    own = isinstance(agent, LlmAgent) and agent.canonical_after_model_callbacks
    return not own and not any(map(_may_change, plugins))


def _may_change(plugin: BasePlugin) -> bool:
    kind = type(plugin)
    changes = (kind.after_model_callback, kind.on_event_callback) != (
        BasePlugin.after_model_callback,
        BasePlugin.on_event_callback,
    )
    return changes and not kind.__module__.startswith(ONLOOKERS)
