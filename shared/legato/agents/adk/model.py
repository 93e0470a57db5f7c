"""A model call of ADK as a step of the turn: its answer is recorded, and handed out again in place of the call."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from typing import Final

from google.adk.flows.llm_flows.functions import generate_client_function_call_id
from google.adk.models.base_llm import BaseLlm
from google.adk.models.google_llm import Gemini
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from pydantic import JsonValue, TypeAdapter
from pydantic_core import to_json

from legato.agents.adk.entered import ASKING, ENTERED, Entered
from legato.agents.adk.said import mark_said, say
from legato.errors import ModelFailed
from legato.models.gemini import failures
from legato.models.gemini_wire import usage_of

_ANSWER: Final = TypeAdapter(list[LlmResponse])
_MADE_DURABLE: Final = "_legato_durable"
_BUFFERED: Final = 1000
"""Pieces of an answer, at most, that a vendor's SDK has read and not given."""


def durable(llm: BaseLlm) -> BaseLlm:
    """The same model, but that its calls are steps of the turn that is run; without one, it is as before."""
    if _MADE_DURABLE in vars(llm):
        return llm
    made = copy.copy(llm)
    # On the instance: ADK asks models for their class.
    vars(made).update({_MADE_DURABLE: True, "generate_content_async": partial(_generate, llm)})
    return made


async def _generate(llm: BaseLlm, llm_request: LlmRequest, stream: bool = False) -> AsyncGenerator[LlmResponse, None]:
    entered = ENTERED.get()
    if entered is None:
        async with aclosing(llm.generate_content_async(llm_request, stream)) as responses:
            async for response in responses:
                yield response
        return
    asking = ASKING.get()
    recorded = await entered.turn.step(asking.step, partial(_ask, llm, llm_request, entered, asking.aloud))
    for response in _ANSWER.validate_json(to_json(recorded)):
        _count(entered, response)
        yield response


async def _ask(llm: BaseLlm, request: LlmRequest, entered: Entered, aloud: bool) -> JsonValue:
    """One call: says what it says, gives the whole answer."""
    answer: list[LlmResponse] = []
    spoken = False
    async with _letting_go(llm.generate_content_async(request, stream=True)) as responses:
        async for response in _patiently(responses, entered.silence):
            if not response.partial:
                answer.append(response)
            if aloud and (response.partial or not spoken):
                spoken |= bool(response.partial)
                await say(entered.turn, response.content)
    _check(llm, answer)
    for response in answer:
        _name_calls(response)
        if aloud:
            mark_said(response)
    recorded: JsonValue = _ANSWER.dump_python(answer, mode="json", by_alias=True, exclude_none=True)
    return recorded


@asynccontextmanager
async def _letting_go(responses: AsyncGenerator[LlmResponse, None]) -> AsyncIterator[AsyncIterator[LlmResponse]]:
    """Closes the vendor's request too where the answer is left before its end."""
    try:
        yield responses
    except BaseException:
        await _cancelled(responses)
        raise
    finally:
        await responses.aclose()


async def _cancelled(responses: AsyncIterator[LlmResponse]) -> None:
    """SDKs tear a request down where they wait for it; between two pieces they leave that to the garbage collector. So
    they are cancelled where they wait for the next one."""
    with suppress(Exception):
        for _ in range(_BUFFERED):
            async with asyncio.timeout(0):
                if await anext(responses, None) is None:
                    return


async def _patiently(responses: AsyncIterator[LlmResponse], silence: float) -> AsyncIterator[LlmResponse]:
    """Raises ModelFailed, also for what the vendor's SDK raises."""
    while True:
        waiting = asyncio.timeout(silence)
        try:
            async with waiting:
                with failures():
                    response = await anext(responses, None)
        except TimeoutError:
            if not waiting.expired():
                raise
            said = f"the model gave nothing for {silence:g} s (AdkAgent.silence)"
            raise ModelFailed("model_silent", said, retryable=True) from None
        if response is None:
            return
        yield response


def _check(llm: BaseLlm, answer: list[LlmResponse]) -> None:
    """Gemini says why its answer ends; one that does not has broken off."""
    whole = bool(answer) and not (
        isinstance(llm, Gemini) and all(each.finish_reason is None and each.error_code is None for each in answer)
    )
    if not whole:
        raise ModelFailed("model_broken_off", "the model's stream ended before its answer was whole", retryable=True)


def _name_calls(response: LlmResponse) -> None:
    """ADK names calls that the vendor did not; a name that is recorded is the same for every owner."""
    for call in response.get_function_calls():
        call.id = call.id or generate_client_function_call_id()


def _count(entered: Entered, response: LlmResponse) -> None:
    if counts := response.usage_metadata:
        entered.usage.update(usage_of(counts.model_dump(mode="json", by_alias=True, exclude_none=True)))
