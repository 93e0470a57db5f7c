"""The agents of Google's Agent Development Kit: a Runner's agent, an App or a workflow becomes one that cannot be lost.

Each time a turn is entered, the whole of it is run by a Runner over what earlier turns of the session have kept. Model
calls are steps and tools are calls: what is recorded of them is handed to ADK in their place. Everything else of ADK
runs again: callbacks, plugins, instructions, what is said of state. It is to do the same each time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final

try:
    from google.adk.agents.run_config import RunConfig, StreamingMode, ToolThreadPoolConfig
    from google.adk.apps.app import App
    from google.adk.runners import Runner
    from google.adk.workflow import BaseNode
except ImportError as missing:
    raise ImportError("ADK agents need the vendor's kit: pip install 'legato[adk]'") from missing

from legato.agents import Turn
from legato.agents.adk.entered import ENTERED, Entered, Rule
from legato.agents.adk.plugin import LegatoPlugin
from legato.agents.adk.said import Voice
from legato.agents.adk.session import message_of, opened, put_away
from legato.agents.adk.tools import this_call
from legato.errors import LegatoError

__all__ = ["AdkAgent", "Rule", "this_call"]
THREADS: Final = 40
"""Sync tools run in threads: in the event loop they would stop every other turn."""


@dataclass(frozen=True, eq=False)
class AdkAgent:
    """An agent of ADK, a workflow or a whole App, as an agent of Legato.

    `rules` says by name what a crash may do to its tools: without one, a tool is `once`. `history` is how many turns of
    the session ADK is given back. A model that gives nothing for `silence` seconds is given up. `services` are what a
    Runner is given besides (`artifact_service`, `memory_service`, `credential_service`).
    """

    agent: BaseNode | App
    _: KW_ONLY
    rules: Mapping[str, Rule] = field(default_factory=dict)
    history: int = 20
    silence: float = 120
    run_config: RunConfig = field(default_factory=RunConfig)
    services: Mapping[str, Any] = field(default_factory=dict)
    _app: App = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.agent, BaseNode | App):
            raise TypeError(f"AdkAgent: {self.agent!r} is no agent of ADK, expected one, a workflow or an App")
        if self.history < 1:
            raise TypeError(f"AdkAgent: history is {self.history}, expected 1 or more")
        if not 0 < self.silence < math.inf:
            raise TypeError(f"AdkAgent: silence is {self.silence!r}, expected seconds above 0")
        app = self.agent if isinstance(self.agent, App) else App(name=self.agent.name, root_agent=self.agent)
        # Ours is the last of the plugins: it acts on what all others have left.
        object.__setattr__(self, "_app", app.model_copy(update={"plugins": [*app.plugins, LegatoPlugin()]}))

    async def __call__(self, turn: Turn) -> None:
        """Runs one turn. Raises ModelFailed, ToolFailed and Refused, and what the agent itself raises."""
        sessions = await opened(turn, self._app.name, self.history)
        runner = Runner(app=self._app, session_service=sessions.service, **self.services)
        entered = Entered(turn, self.rules, self.silence)
        token = ENTERED.set(entered)
        try:
            finish_reason = await self._run(runner, turn)
        except RuntimeError as wrapped:
            raise _own(wrapped) or wrapped from wrapped.__cause__
        finally:
            ENTERED.reset(token)
        await put_away(turn, sessions)
        turn.finish(dict(entered.usage), finish_reason)

    async def _run(self, runner: Runner, turn: Turn) -> str:
        """Says what the agent says, to its end; gives why the last answer has ended."""
        run = runner.run_async(
            user_id=turn.uid,
            session_id=turn.session,
            new_message=message_of(turn.input),
            run_config=self._configured(),
        )
        async with Voice(turn) as voice, aclosing(run) as events:
            async for event in events:
                await voice.hear(event)
            await voice.all_said()
            return voice.finish_reason()

    def _configured(self) -> RunConfig:
        """The model's stream is read in its step; ADK is given each answer whole."""
        pool = self.run_config.tool_thread_pool_config or ToolThreadPoolConfig(max_workers=THREADS)
        return self.run_config.model_copy(
            update={"streaming_mode": StreamingMode.NONE, "tool_thread_pool_config": pool}
        )


def _own(wrapped: RuntimeError) -> LegatoError | None:
    """What our plugin raised, which ADK wraps."""
    cause = wrapped.__cause__
    return cause if isinstance(cause, LegatoError) else None
