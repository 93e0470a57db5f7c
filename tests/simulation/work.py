"""What turns do in a simulated world: plans drawn from the seed, agents that follow them, tools that are counted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextvars import ContextVar
from functools import partial
from random import Random
from typing import Any, Literal, NamedTuple, Protocol

from pydantic import TypeAdapter

from legato.agents import AgentFunction, Call, Turn
from legato.agents.adapt import as_agent
from legato.agents.loop import Agent
from legato.errors import ToolFailed
from legato.models import AssistantMessage, ModelEvent, ModelRequest, ToolMessage
from legato.models.scripted import ScriptedModel
from legato.principal import Principal
from legato.tools import Tool, ToolContext, tool


class Host(Protocol):
    """The instance in whose tasks an agent or a tool runs."""

    def entered(self, key: str, effect: str, asked: bool) -> None: ...

    def done(self, key: str, effect: str) -> None: ...

    def torn(self, key: str) -> None: ...

    def found(self, key: str) -> bool: ...

    def given(self, key: str, value: str) -> None: ...

    def asked(self, request: ModelRequest) -> None: ...


HOST: ContextVar[Host] = ContextVar("the instance that this task runs on")


TIMEOUT = 20.0


async def _use(key: str, effect: str, before: float, after: float, asked: bool = False) -> str:
    """Enters a tool; its side effect comes after `before` seconds, its result `after` seconds later."""
    host = HOST.get()
    host.entered(key, effect, asked)
    began = asyncio.get_running_loop().time()
    try:
        await asyncio.sleep(before)
        host.done(key, effect)
        await asyncio.sleep(after)
    except asyncio.CancelledError:
        if effect == "once" and asyncio.get_running_loop().time() < began + TIMEOUT:
            host.torn(key)
        raise
    return key


@tool(effect="read", timeout=TIMEOUT)
async def lookup(before: float, after: float, *, key: str) -> str:
    return await _use(key, "read", before, after)


@tool(effect="idempotent", timeout=TIMEOUT)
async def slow(before: float, after: float, *, key: str, turn: ToolContext) -> str:
    turn.progress("begun", 0)
    given = await _use(key, "idempotent", before, after)
    turn.progress("done", 1)
    return given


async def _found(key: str) -> str | None:
    """What the other side says of a call in doubt: whether it was made."""
    host = HOST.get()
    await asyncio.sleep(0.02)
    return key if host.found(key) else None


@tool(effect="once", timeout=TIMEOUT, reconcile=_found)
async def transfer(before: float, after: float, *, key: str) -> str:
    return await _use(key, "once", before, after)


@tool(effect="once", timeout=TIMEOUT)
async def pay(before: float, after: float, *, key: str) -> str:
    return await _use(key, "once", before, after)


@tool(effect="once", timeout=TIMEOUT, approval="Really?")
async def wire(before: float, after: float, *, key: str) -> str:
    return await _use(key, "once", before, after, asked=True)


async def _may(principal: Principal, arguments: dict[str, Any]) -> bool:
    """Takes its time; no more than half of a call may come before its effect."""
    await asyncio.sleep(arguments["after"] / 10)
    return bool(arguments["before"] <= arguments["after"])


@tool(effect="once", timeout=TIMEOUT, allow=_may)
async def refund(before: float, after: float, *, key: str) -> str:
    return await _use(key, "once", before, after)


@tool(effect="once", timeout=TIMEOUT, credentials=("mail",))
async def mail(before: float, after: float, *, key: str, turn: ToolContext) -> str:
    done = await _use(key, "once", before, after)
    HOST.get().given(key, await turn.credentials("mail"))
    return done


TOOLS: tuple[Tool, ...] = (lookup, slow, transfer, transfer, pay, refund, wire, mail)
TOLD = ("timeout", "denied", "outcome_unknown", "forbidden", "credential_expired", "credential_rejected")
"""How a call may end that is no failure of its turn."""
NAMED = {each.name: each for each in TOOLS}
DURATIONS = (0.0, 0.05, 0.05, 0.4, 0.4, 1.5, 3.0, 12.0, 18.0, 18.0, 22.0)


class Use(NamedTuple):
    tool: str
    arguments: dict[str, float]


class Act(NamedTuple):
    """One thing of a plan: words said, in a step of their own or not, or tools used side by side."""

    kind: Literal["say", "step", "use"]
    words: int = 0
    uses: tuple[Use, ...] = ()


class Plan(NamedTuple):
    """What one turn is to do. `agent`: the model's loop or one written by hand; `fails`: its end."""

    agent: Literal["loop", "hand"]
    acts: tuple[Act, ...]
    fails: str | None = None

    @property
    def input(self) -> Any:
        return _script(self) if self.agent == "loop" else _ACTS.dump_python(self.acts, mode="json")

    @property
    def text(self) -> str:
        """What it says when nothing disturbs it."""
        words = sum(act.words for act in self.acts)
        return "".join(f"w{number + 1} " for number in range(words))

    @property
    def calls(self) -> int:
        return sum(len(act.uses) for act in self.acts)


_ACTS = TypeAdapter(tuple[Act, ...])


def draw(random: Random) -> Plan:
    agent: Literal["loop", "hand"] = "loop" if random.random() < 0.6 else "hand"
    acts = [_say(random, agent)]
    for _ in range(random.choice((0, 1, 1, 2))):
        acts += (_uses(random), _say(random, agent))
    fails = random.choice(("/fail it was told to", "/drop")) if agent == "loop" and random.random() < 0.06 else None
    return Plan(agent, tuple(acts), fails)


def _say(random: Random, agent: str) -> Act:
    kind: Literal["say", "step"] = "step" if agent == "hand" and random.random() < 0.5 else "say"
    return Act(kind, random.randint(1, random.choice((3, 8, 30))))


def _uses(random: Random) -> Act:
    times = [random.choice(DURATIONS) for _ in range(random.choice((1, 1, 2, 3)))]
    tools = random.choice((TOOLS, TOOLS, (wire,), (mail, wire)))
    uses = []
    for time in times:
        before = round(time * random.choice((0.0, 0.95, random.random())), 3)
        uses.append(Use(random.choice(tools).name, {"before": before, "after": round(time - before, 3)}))
    return Act("use", 0, tuple(uses))


def _script(plan: Plan) -> str:
    lines = []
    for act in plan.acts:
        if act.kind == "use":
            verb = "/tool" if len(act.uses) == 1 else "/parallel"
            lines.append(" ".join([verb, *(f"{use.tool} {json.dumps(use.arguments)}" for use in act.uses)]))
        else:
            lines.append(f"/say {act.words} 20")
    return "\n".join([*lines, *([plan.fails] if plan.fails else [])])


class _Model(ScriptedModel):
    """Shows each request to the world."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        HOST.get().asked(request)
        async for event in super().stream(request):
            yield event


async def _by_hand(turn: Turn) -> None:
    """The same plans, written with `turn.step`, `turn.call` and `turn.calls`."""
    said = 0
    for number, act in enumerate(_ACTS.validate_python(turn.input)):
        speak = partial(_speak, turn, said, act.words)
        if act.kind == "step":
            await turn.step(f"part {number}", speak)
            said += act.words
        elif act.kind == "say":
            said = await speak()
        elif len(act.uses) == 1:
            await _call(turn, act.uses[0])
        else:
            await turn.calls([Call(NAMED[use.tool], use.tool, dict(use.arguments)) for use in act.uses])


async def _call(turn: Turn, use: Use) -> None:
    try:
        await turn.call(NAMED[use.tool], **use.arguments)
    except ToolFailed as failed:
        if failed.code not in TOLD:
            raise


async def _speak(turn: Turn, said: int, words: int) -> int:
    """Says words at 20 a second; gives the number of all said by then."""
    for number in range(said, said + words):
        await asyncio.sleep(0.05)
        await turn.text(f"w{number + 1} ")
    return said + words


AGENTS: dict[str, AgentFunction] = {
    "loop": as_agent(Agent(model=_Model(), tools=tuple(NAMED.values()), max_steps=100)),
    "hand": as_agent(_by_hand),
}


def answered_once(request: ModelRequest) -> bool:
    """Each call that the model made has its result in what it is asked next, once, in order."""
    made = [call for said in request.messages if isinstance(said, AssistantMessage) for call in said.calls]
    given = [answer.call for said in request.messages if isinstance(said, ToolMessage) for answer in said.answers]
    return made == given
