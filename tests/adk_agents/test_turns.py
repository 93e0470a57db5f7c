"""What becomes of an agent of ADK: its text, its tools, its state and its sub-agents, each as ADK has it."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from google.adk.agents import LlmAgent, ParallelAgent, SequentialAgent
from google.adk.apps.app import App
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.plugins.logging_plugin import LoggingPlugin
from google.adk.tools import LongRunningFunctionTool
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import START, Workflow
from google.genai.types import Content, Part
from pydantic import JsonValue

from adk_agents.kit import Kit, words
from engine.rig import KEY, Instance, Rig, eventually, types
from legato.agents.adk import AdkAgent, Rule, this_call
from legato.journal import TurnRecord


async def ended(instance: Instance, said: JsonValue, turn: str = "t1") -> TurnRecord:
    await instance.start(said, turn)
    return await instance.ended(turn)


def tools(record: TurnRecord) -> list[tuple[str, str, Any]]:
    return [(tool.name, tool.status, tool.content if tool.error is None else tool.error.code) for tool in record.tools]


async def test_tokens_of_thoughts_are_counted_apart(rig: Rig, kit: Kit) -> None:
    usage = dict((await ended(rig.instance(kit.made()), "/think 2\n/say 5")).usage or {})
    assert usage.pop("input_tokens") > 0
    assert usage == {"output_tokens": 5, "reasoning_tokens": 2}


async def test_a_later_turn_finds_the_session_on_another_instance(rig: Rig, kit: Kit) -> None:
    """Its events, as the model is told of them, and its state."""
    await ended(rig.instance(kit.made()), '/say 1\n/parallel lookup {"key": "a"} remember {"amount": 3}\n/say 1', "t1")
    await ended(rig.instance(kit.made()), '/tool remember {"amount": 4}\n/say 1', "t2")
    await ended(rig.instance(kit.made()), "/say 1", "t3")
    told = (await kit.service.request(4)).body["contents"]
    assert [content["role"] for content in told] == ["user", "model", "user", "model"] * 2 + ["user"]
    assert [part["functionCall"]["name"] for part in told[1]["parts"] if "functionCall" in part] == [
        "lookup",
        "remember",
    ]
    assert told[-3]["parts"][0]["functionResponse"]["response"] == {"result": 7}


async def test_only_so_many_turns_are_given_back(rig: Rig, kit: Kit) -> None:
    """And the state, which is that after all of them."""
    one = rig.instance(kit.made(history=1))
    await ended(one, '/tool remember {"amount": 3}\n/say 1', "t0")
    await ended(one, "/say 1", "t1")
    record = await ended(one, '/tool remember {"amount": 1}\n/say 1', "t2")
    assert len((await kit.service.request(3)).body["contents"]) == 3
    assert tools(record) == [("remember", "ok", 4)]


async def test_a_turn_that_fails_leaves_no_trace_in_the_session(rig: Rig, kit: Kit) -> None:
    one = rig.instance(kit.made())
    assert (await ended(one, "/say 1\n/fail broken", "t1")).status == "failed"
    assert (await ended(one, "/say 2", "t2")).output == "w1 w2 "
    assert len((await kit.service.request(1)).body["contents"]) == 1


async def test_what_a_callback_puts_in_place_of_a_call_is_not_called(rig: Rig, kit: Kit) -> None:
    """The agent's own callbacks come first: a guard is not got round."""

    def guard(tool: Any, args: dict[str, Any], tool_context: ToolContext) -> dict[str, str] | None:
        return {"error": "too much"} if args.get("amount", 0) > 5 else None

    agent = kit.agent(tools=[kit.transfer], before_tool_callback=guard)
    record = await ended(
        rig.instance(kit.made(agent)), '/parallel transfer {"amount": 9} transfer {"amount": 2}\n/say 1'
    )
    assert tools(record) == [("transfer", "ok", {"transferred": 2})]
    answers = (await kit.service.request(1)).body["contents"][-1]["parts"]
    assert answers[0]["functionResponse"]["response"] == {"error": "too much"}


async def test_a_result_is_what_the_agents_own_callbacks_make_of_it(rig: Rig, kit: Kit) -> None:
    def after(tool: Any, args: dict[str, Any], tool_context: ToolContext, tool_response: Any) -> dict[str, str]:
        return {"seen": str(tool_response)}

    agent = kit.agent(tools=[kit.lookup], after_tool_callback=after)
    await ended(rig.instance(kit.made(agent)), '/tool lookup {"key": "a"}\n/say 1')
    answers = (await kit.service.request(1)).body["contents"][-1]["parts"]
    assert answers[0]["functionResponse"]["response"] == {"seen": "{'value': 'the value of a'}"}


async def test_what_a_callback_makes_of_an_answer_is_what_is_said(rig: Rig, kit: Kit) -> None:
    """Nothing of it is shown before the callback has seen it."""

    def redact(callback_context: Any, llm_response: LlmResponse) -> LlmResponse | None:
        assert llm_response.content
        assert llm_response.content.parts
        text = (llm_response.content.parts[0].text or "").replace("w2", "**")
        return llm_response.model_copy(update={"content": Content(role="model", parts=[Part(text=text)])})

    one = rig.instance(kit.made(kit.agent(after_model_callback=redact)))
    records = await one.play("/say 3")
    assert (await one.record()).output == "w1 ** w3 "
    assert not any("w2" in record.data for record in records)


class Redacting(BasePlugin):
    async def on_event_callback(self, *, invocation_context: Any, event: Any) -> Any:
        for part in event.content.parts if event.content else []:
            part.text = part.text and part.text.replace("w2", "**")
        return event


async def test_what_a_plugin_makes_of_an_event_is_what_is_said(rig: Rig, kit: Kit) -> None:
    app = App(name="app", root_agent=kit.agent(), plugins=[Redacting(name="redacting")])
    record = await ended(rig.instance(kit.made(app)), "/say 3")
    assert record.output == "w1 ** w3 "


async def test_a_plugin_that_only_looks_on_does_not_hold_text_back(
    rig: Rig, kit: Kit, capsys: pytest.CaptureFixture[str]
) -> None:
    app = App(name="app", root_agent=kit.agent(), plugins=[LoggingPlugin()])
    records = await rig.instance(kit.made(app)).play("/say 3")
    assert types(records).count("text.delta") == 3


async def test_an_answer_in_place_of_the_model_is_said(rig: Rig, kit: Kit) -> None:
    def instead(callback_context: Any, llm_request: LlmRequest) -> LlmResponse:
        return LlmResponse(content=Content(role="model", parts=[Part(text="no need")]))

    record = await ended(rig.instance(kit.made(kit.agent(before_model_callback=instead))), "/say 3")
    assert record.output == "no need"
    assert not kit.service.seen


def broken() -> None:
    """Does nothing but fail."""
    raise ValueError("out of order")


async def test_a_tool_that_raises_fails_the_turn_as_it_fails_a_run(rig: Rig, kit: Kit) -> None:
    record = await ended(rig.instance(kit.made(kit.agent(tools=[broken]))), "/tool broken {}\n/say 1")
    assert tools(record) == [("broken", "error", "tool_failed")]
    assert record.error == {"code": "tool_failed", "message": "ValueError: out of order"}


async def test_an_error_that_a_callback_answers_is_an_answer(rig: Rig, kit: Kit) -> None:
    async def mend(tool: Any, args: dict[str, Any], tool_context: ToolContext, error: Exception) -> dict[str, str]:
        return {"mended": str(error)}

    agent = kit.agent(tools=[broken], on_tool_error_callback=mend)
    record = await ended(rig.instance(kit.made(agent)), "/tool broken {}\n/say 1")
    assert record.output == "w1 "
    answers = (await kit.service.request(1)).body["contents"][-1]["parts"]
    assert answers[0]["functionResponse"]["response"] == {"mended": "ValueError: out of order"}


async def test_a_call_that_is_not_allowed_is_refused_and_the_agent_told(rig: Rig, kit: Kit) -> None:
    rules = {"transfer": Rule(allow=lambda principal, arguments: principal.uid == "bob" or arguments["amount"] < 3)}
    one = rig.instance(kit.made(rules=rules))
    await one.play('/parallel transfer {"amount": 5} transfer {"amount": 2}\n/say 1')
    refused, made = (await one.record()).tools
    assert refused.error
    assert (refused.error.code, made.status) == ("forbidden", "ok")
    assert list(kit.ledger.values()) == [2]


async def test_a_tool_is_given_what_only_its_user_has(rig: Rig, kit: Kit) -> None:
    shown: list[str] = []

    async def mail(to: str) -> str:
        """Sends a mail."""
        shown.append(await this_call().credentials("mail"))
        return f"sent to {to}"

    one = rig.instance(kit.made(kit.agent(tools=[mail]), rules={"mail": Rule(credentials=("mail",))}))
    await one.start('/tool mail {"to": "eve"}\n/say 1')
    await eventually(lambda: not one.engine.live)
    assert types(await one.stored())[-2:] == ["credential.required", "turn.suspended"]
    await one.gateway.supply(KEY, "t1", "mail", "sesame", None)
    assert tools(await one.ended()) == [("mail", "ok", "sent to eve")]
    assert shown == ["sesame"]


async def test_a_sync_tool_runs_beside_the_event_loop(rig: Rig, kit: Kit) -> None:
    ran: list[threading.Thread] = []

    def sync(n: int) -> int:
        """Counts."""
        ran.append(threading.current_thread())
        return n + 1

    record = await ended(rig.instance(kit.made(kit.agent(tools=[sync]))), '/tool sync {"n": 1}\n/say 1')
    assert tools(record) == [("sync", "ok", 2)]
    assert ran[0] is not threading.main_thread()


async def test_a_tool_without_a_result_is_called_once(rig: Rig, kit: Kit) -> None:
    entered: list[int] = []

    async def note(n: int) -> None:
        """Notes."""
        entered.append(n)

    record = await ended(rig.instance(kit.made(kit.agent(tools=[note]))), '/tool note {"n": 1}\n/say 1')
    assert (entered, record.output) == ([1], "w1 ")


async def test_a_sub_agent_takes_over_and_its_calls_are_calls_of_the_turn(rig: Rig, kit: Kit) -> None:
    worker = kit.agent("worker", [kit.transfer], description="Transfers.")
    boss = kit.agent("boss", sub_agents=[worker])
    script = '/say 1\n/tool transfer_to_agent {"agent_name": "worker"}\n/say 1\n/tool transfer {"amount": 2}\n/say 1'
    record = await ended(rig.instance(kit.made(boss)), script)
    assert (record.output, tools(record)) == (words(3), [("transfer", "ok", {"transferred": 2})])


@pytest.mark.filterwarnings("ignore:The `plugins` argument is deprecated:DeprecationWarning")  # it is ADK that uses it
async def test_an_agent_used_as_a_tool_says_nothing_and_its_calls_are_calls_of_the_turn(rig: Rig, kit: Kit) -> None:
    inner = AgentTool(kit.agent("inner", [kit.transfer]))
    request = '{"request": "/say 1\\n/tool transfer {\\"amount\\": 2}\\n/say 3"}'
    one = rig.instance(kit.made(kit.agent(tools=[inner])))
    record = await ended(one, f"/say 1\n/tool inner {request}\n/say 1")
    assert (record.output, tools(record)) == (words(2), [("transfer", "ok", {"transferred": 2})])
    answers = (await kit.service.request(3)).body["contents"][-1]["parts"]
    assert answers[0]["functionResponse"]["response"] == {"result": "w2 w3 w4 "}


async def test_an_agent_used_as_a_tool_without_plugins_is_one_call(rig: Rig, kit: Kit) -> None:
    inner = AgentTool(kit.agent("inner"), include_plugins=False)
    record = await ended(rig.instance(kit.made(kit.agent(tools=[inner]))), '/tool inner {"request": "/say 2"}\n/say 1')
    assert tools(record) == [("inner", "ok", "w1 \nw2 ")]


async def test_agents_side_by_side_keep_their_words_together(rig: Rig, kit: Kit) -> None:
    with pytest.deprecated_call():
        both = ParallelAgent(name="both", sub_agents=[kit.agent("one", [kit.lookup]), kit.agent("two", [kit.lookup])])
    record = await ended(rig.instance(kit.made(both)), '/say 2\n/tool lookup {"key": "a"}\n/say 1')
    assert record.output == "w1 w2 w1 w2 w3 w3 "
    assert len(record.tools) == 2


async def test_agents_in_a_row_and_in_a_workflow_follow_one_another(rig: Rig, kit: Kit) -> None:
    script = '/say 1\n/tool lookup {"key": "a"}\n/say 2'
    with pytest.deprecated_call():
        row = SequentialAgent(name="row", sub_agents=[kit.agent("one", [kit.lookup])])
    flow = Workflow(name="flow", edges=[(START, kit.agent("two", [kit.lookup]))])
    assert (await ended(rig.instance(kit.made(row)), script, "t1")).output == words(3)
    assert (await ended(rig.instance(AdkAgent(flow)), script, "t2")).output == words(3)


async def test_a_long_running_call_is_answered_by_a_later_turn(rig: Rig, kit: Kit) -> None:
    async def ask_manager(what: str) -> None:
        """Asks, and has no answer yet."""

    def made() -> AdkAgent:
        return kit.made(kit.agent(tools=[LongRunningFunctionTool(ask_manager)]))

    first = await ended(rig.instance(made()), '/say 1\n/tool ask_manager {"what": "x"}\n/say 2', "t1")
    assert (first.output, tools(first)) == ("w1 ", [("ask_manager", "ok", None)])
    answer: JsonValue = {"functionResponse": {"id": "call-0-1", "name": "ask_manager", "response": {"approved": True}}}
    second = await ended(rig.instance(made()), {"parts": [answer]}, "t2")
    assert second.output == "w2 w3 "


async def test_images_and_files_are_told_as_every_model_is_told_them(rig: Rig, kit: Kit) -> None:
    image: Any = {"data": "iVBORw0KGgo=", "media_type": "image/png"}
    report: Any = {"uri": "gs://bucket/report.pdf", "media_type": "application/pdf"}
    record = await ended(rig.instance(kit.made()), {"parts": ["/say 1", image, report]})
    assert record.output == "w1 "
    said, data, file = kit.service.seen[0].body["contents"][0]["parts"]
    assert said == {"text": "/say 1"}
    assert data["inlineData"]["mimeType"] == "image/png"
    assert file["fileData"] == {"fileUri": "gs://bucket/report.pdf", "mimeType": "application/pdf"}


@pytest.mark.parametrize(
    "given",
    [
        {"parts": [{"nonsense": 1}]},
        {"parts": [{"data": "?", "media_type": "image/png"}]},
        {"parts": [1]},
        {"parts": []},
        {"parts": ["/say 1"], "role": "model"},
        {"parts": [{"functionCall": {"name": "transfer", "args": {"amount": 5}}}]},
    ],
    ids=str,
)
async def test_an_input_that_is_no_content_of_a_user_is_refused(rig: Rig, kit: Kit, given: JsonValue) -> None:
    record = await ended(rig.instance(kit.made()), given)
    assert record.error
    assert (record.error["code"], kit.service.seen) == ("bad_input", [])


async def test_an_agent_outside_of_a_turn_is_as_it_was(kit: Kit, rig: Rig) -> None:
    agent = kit.agent()
    await ended(rig.instance(kit.made(agent)), "/say 1")
    model = agent.canonical_model
    request = LlmRequest(model="gemini-2.5-flash", contents=[Content(role="user", parts=[Part(text="/say 2")])])
    answers = [answer async for answer in model.generate_content_async(request, stream=True)]
    assert [bool(answer.partial) for answer in answers] == [True] * (len(answers) - 1) + [False]
    assert len(answers) > 2


def test_what_is_no_agent_of_adk_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="no agent of ADK"):
        AdkAgent(lambda: None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="effect"):
        Rule(effect="never")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="history"):
        AdkAgent(LlmAgent(name="a"), history=0)


async def test_parts_in_a_result_are_what_they_were(rig: Rig, kit: Kit) -> None:
    """An image that a tool gives reaches the model as an image, by way of the journal."""

    async def draw(what: str) -> dict[str, Any]:
        """Draws."""
        return {"of": what, "image": Part.from_bytes(data=b"\xff\xd8", mime_type="image/jpeg")}

    record = await ended(rig.instance(kit.made(kit.agent(tools=[draw]))), '/tool draw {"what": "it"}\n/say 1')
    assert record.output == "w1 "
    answer = (await kit.service.request(1)).body["contents"][-1]["parts"][0]["functionResponse"]
    assert answer["response"] == {"of": "it"}
    assert answer["parts"][0]["inlineData"]["mimeType"] == "image/jpeg"


async def test_a_session_that_grows_large_leaves_the_largest_out(rig: Rig, kit: Kit) -> None:
    async def big(size: int) -> str:
        """Gives much."""
        return "x" * size

    def made() -> AdkAgent:
        return kit.made(kit.agent(tools=[big, kit.remember]))

    script = '/parallel big {"size": 1500000} big {"size": 9}\n/tool remember {"amount": 3}\n/say 1'
    assert (await ended(rig.instance(made()), script, "t1")).status == "completed"
    assert (await ended(rig.instance(made()), '/tool remember {"amount": 1}\n/say 1', "t2")).output == "w1 "
    contents = kit.service.seen[-1].body["contents"]
    answers = [
        part["functionResponse"]["response"]
        for content in contents
        for part in content["parts"]
        if "functionResponse" in part
    ]
    assert list(answers[0]) == ["left_out_bytes"]
    assert answers[1:] == [{"result": "x" * 9}, {"result": 3}, {"result": 4}]


async def test_a_state_that_a_turn_changes_over_and_over_is_kept_once(rig: Rig, kit: Kit) -> None:
    async def write(text: str, tool_context: ToolContext) -> int:
        """Writes what the session has anew; gives the length of what it had."""
        before = len(tool_context.state.get("page", ""))
        tool_context.state["page"] = text * 200_000
        return before

    def made() -> AdkAgent:
        return kit.made(kit.agent(tools=[write]))

    script = "".join(f'/tool write {{"text": "{text}"}}\n' for text in "abcdef")
    assert (await ended(rig.instance(made()), f"{script}/say 1", "t1")).status == "completed"
    record = await ended(rig.instance(made()), '/tool write {"text": "g"}\n/say 1', "t2")
    assert tools(record) == [("write", "ok", 200_000)]
