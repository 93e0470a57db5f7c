"""What Gemini is asked and what it answers, between the model port's words and the vendor's JSON. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from legato.errors import ModelFailed
from legato.events import Usage
from legato.models import (
    Answer,
    AssistantMessage,
    CallRequested,
    Finished,
    Message,
    ModelEvent,
    ReasoningChunk,
    TextChunk,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from legato.models.inputs import Data, Part, Reference, Text, parts_of

Json = dict[str, Any]

FINISHED: Final = {"STOP": "stop", "MAX_TOKENS": "max_tokens"}
"""The vendor's reasons that end a whole answer; every other one is a failure."""
BLOCKED: Final = re.compile("(IMAGE_)?(SAFETY|RECITATION|PROHIBITED_CONTENT)|BLOCKLIST|SPII")
BAD_CALL: Final = re.compile("MALFORMED_FUNCTION_CALL|UNEXPECTED_TOOL_CALL")
FOR_THE_MOMENT: Final = frozenset([408, 429, 500, 502, 503, 504])
COUNTS: Final = {
    "promptTokenCount": "input_tokens",
    "candidatesTokenCount": "output_tokens",
    "thoughtsTokenCount": "reasoning_tokens",
    "cachedContentTokenCount": "cached_tokens",
    "toolUsePromptTokenCount": "tool_input_tokens",
}


# What it is asked.


def contents_of(messages: Iterable[Message]) -> list[Json]:
    """The conversation. An answer goes back as it came, one without the vendor's message as its text and calls."""
    told = map(_content, messages)
    return [content for content in told if content["parts"]]


def declarations_of(tools: Iterable[ToolSpec]) -> list[Json]:
    return [
        {"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.parameters} for tool in tools
    ]


def _content(message: Message) -> Json:
    match message:
        case UserMessage(content):
            return {"role": "user", "parts": [input_of(part) for part in parts_of(content)]}
        case AssistantMessage(vendor={"parts": list(parts)}):
            return {"role": "model", "parts": parts}
        case AssistantMessage(text, calls):
            said = [{"text": text}] if text else []
            return {"role": "model", "parts": said + [{"functionCall": _call(call)} for call in calls]}
        case ToolMessage(answers):
            return {"role": "user", "parts": [{"functionResponse": _response(answer)} for answer in answers]}


def input_of(part: Part) -> Json:
    """A part of the input in the vendor's words."""
    match part:
        case Text(text=text):
            return {"text": text}
        case Data(data=data, media_type=kind):
            return {"inlineData": {"data": data, "mimeType": kind}}
        case Reference(uri=uri, media_type=kind):
            return {"fileData": {"fileUri": uri, "mimeType": kind}}


def _call(call: CallRequested) -> Json:
    arguments = call.arguments if isinstance(call.arguments, dict) else {}
    return _named(call, args=arguments)


def _response(answer: Answer) -> Json:
    """The service reads a result under `output` and a failure under `error`."""
    call, outcome = answer
    error = outcome.error
    said: Json = {"error": {"code": error.code, "message": error.message}} if error else {"output": outcome.content}
    return _named(call, response=said)


def _named(call: CallRequested, **more: Json) -> Json:
    own = {} if call.vendor_id is None else {"id": call.vendor_id}
    return {**own, "name": call.name, **more}


# What it answers.


class Reading:
    """One answer, taken frame by frame."""

    def __init__(self) -> None:
        self._parts: list[Json] = []
        self._counts: Json = {}
        self._reason: str | None = None
        self._calls = False

    def take(self, frame: Mapping[str, Any]) -> Iterator[ModelEvent]:
        """What a frame says. Raises ModelFailed where it says that there is no answer."""
        self._counts = frame.get("usageMetadata") or self._counts
        if blocked := (frame.get("promptFeedback") or {}).get("blockReason"):
            raise ModelFailed("model_blocked", f"Gemini does not answer this input: {blocked}")
        candidate = (frame.get("candidates") or [{}])[0]
        for part in (candidate.get("content") or {}).get("parts") or []:
            self._keep(part)
            yield from self._said(part)
        if reason := candidate.get("finishReason"):
            self._finish(reason, candidate.get("finishMessage"))

    def finished(self) -> Finished | None:
        """None where the stream has broken off."""
        if self._reason is None:
            return None
        reason = "tool_calls" if self._calls else self._reason
        vendor: Json = {"role": "model", "parts": self._parts}
        return Finished(reason, usage_of(self._counts), vendor)

    def _said(self, part: Json) -> Iterator[ModelEvent]:
        if call := part.get("functionCall"):
            self._calls = True
            yield CallRequested(call.get("name") or "", call.get("args") or {}, call.get("id"))
        elif text := part.get("text"):
            yield ReasoningChunk(text) if part.get("thought") else TextChunk(text)

    def _keep(self, part: Json) -> None:
        """Text that the stream cut is one part again; whatever is signed stays as it came."""
        last = self._parts[-1] if self._parts else {}
        if _is_text(part) and _is_text(last) and part.get("thought") == last.get("thought"):
            self._parts[-1] = {**last, "text": last["text"] + part["text"]}
        elif part and part != {"text": ""}:
            self._parts.append(part)

    def _finish(self, reason: str, message: str | None) -> None:
        if reason in FINISHED:
            self._reason = FINISHED[reason]
            return
        said = f"Gemini ended its answer with {reason}" + (f": {message}" if message else "")
        if BAD_CALL.fullmatch(reason):
            raise ModelFailed("model_bad_call", said, retryable=True)
        raise ModelFailed("model_blocked" if BLOCKED.fullmatch(reason) else "model_stopped", said)


def _is_text(part: Json) -> bool:
    return "text" in part and part.keys() <= {"text", "thought"}


def usage_of(counts: Mapping[str, Any]) -> Usage:
    """Tokens by kind; `output_tokens` are without the `reasoning_tokens`."""
    return {COUNTS[name]: count for name, count in counts.items() if name in COUNTS and isinstance(count, int)}


# How it fails.


def failure_of(status: int, message: str, details: Sequence[Any], headers: Mapping[str, str]) -> ModelFailed:
    """An error of the API. The delay is that of its RetryInfo, else that of the header, in seconds."""
    if status not in FOR_THE_MOMENT:
        return ModelFailed("model_refused", f"Gemini refused the request ({status}): {message}")
    code = "model_rate_limited" if status == 429 else "model_unavailable"
    return ModelFailed(
        code, f"Gemini does not answer for the moment ({status}): {message}", retryable=True,
        retry_after=_delay(details, headers),
    )  # fmt: skip


def _delay(details: Sequence[Any], headers: Mapping[str, str]) -> float | None:
    told = [each.get("retryDelay") for each in details if isinstance(each, dict)]
    for said in (*told, headers.get("retry-after")):
        if found := re.fullmatch(r"(\d+(?:\.\d+)?)s?", said or ""):
            return float(found[1])
    return None
