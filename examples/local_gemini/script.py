"""What the service answers: a request's content played as the scripted model plays it, in the vendor's frames."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from legato.models import (
    AssistantMessage,
    CallRequested,
    Finished,
    Message,
    ModelRequest,
    ReasoningChunk,
    TextChunk,
    UserMessage,
)
from legato.models.scripted import ScriptedModel

Frame = dict[str, Any]
Content = Mapping[str, Any]


class Wrong(Exception):
    """A request that the real service answers with 400 INVALID_ARGUMENT."""


class BrokenOff(Exception):
    """The script ends without its end."""


async def play(body: Mapping[str, Any], model: str) -> AsyncIterator[Frame]:
    """The frames of one answer. Raises Wrong, BrokenOff, and ModelFailed where the script says `/fail`."""
    contents = merged(body.get("contents") or [])
    check(contents)
    told, done = _told(contents)
    signed, thoughts, calls = signature(told, done), 0, 0
    async for event in ScriptedModel().stream(ModelRequest("", told)):
        match event:
            case TextChunk(text):
                yield frame(model, [{"text": text}])
            case ReasoningChunk(text):
                thoughts += 1
                yield frame(model, [{"text": text, "thought": True}])
            case CallRequested(name, arguments):
                calls += 1
                call: Frame = {"functionCall": {"id": f"call-{done}-{calls}", "name": name, "args": arguments}}
                yield frame(model, [call if calls > 1 else {**call, "thoughtSignature": signed}])
            case Finished(_, usage):
                asked, said = (usage or {})["input_tokens"], (usage or {})["output_tokens"] - thoughts
                last: Frame = {"text": ""} if calls else {"text": "", "thoughtSignature": signed}
                yield frame(model, [last], "STOP", counted(asked, said, thoughts))
                return
    raise BrokenOff


def merged(contents: Sequence[Content]) -> list[Content]:
    """What the model said in a row, content by content, is one answer of its own."""
    found: list[Content] = []
    for content in contents:
        if found and content.get("role") == found[-1].get("role") == "model":
            found[-1] = {**content, "parts": [*found[-1]["parts"], *content["parts"]]}
        else:
            found.append(content)
    return found


def frame(model: str, parts: Sequence[Frame], finish: str | None = None, usage: Frame | None = None) -> Frame:
    candidate = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    ended = {"finishReason": finish} if finish else {}
    counts = {"usageMetadata": usage} if usage else {}
    return {"candidates": [candidate | ended], **counts, "modelVersion": model, "responseId": "local"}


def counted(asked: int, said: int, thoughts: int) -> Frame:
    thought = {"thoughtsTokenCount": thoughts} if thoughts else {}
    total = asked + said + thoughts
    return {"promptTokenCount": asked, "candidatesTokenCount": said, **thought, "totalTokenCount": total}


def whole(frames: Sequence[Frame]) -> Frame:
    """All frames of an answer as the one that `generateContent` gives."""
    parts = [part for each in frames for part in each["candidates"][0]["content"].get("parts", [])]
    candidate = {**frames[-1]["candidates"][0], "content": {"role": "model", "parts": parts}}
    return {**frames[-1], "candidates": [candidate]}


def signature(told: Sequence[Message], done: int) -> str:
    """What the answer number `done` to this text is signed with: the same whenever it is asked for."""
    texts = [message.content for message in told if isinstance(message, UserMessage)]
    return base64.b64encode(hashlib.sha512(f"{done} {texts[-1:]}".encode()).digest()).decode()


def _told(contents: Sequence[Content]) -> tuple[tuple[Message, ...], int]:
    """The conversation in the words of the model port, and how many answers the last text of the user has had."""
    told: list[Message] = []
    done = 0
    for content in contents:
        texts = [part["text"] for part in content["parts"] if "text" in part]
        if content.get("role") == "model" or _quotes_an_answer(texts):
            told.append(AssistantMessage(""))
            done += 1
        elif texts and not _adk_says(texts[0]):
            told.append(UserMessage("\n".join(texts)))
            done = 0
    return tuple(told), done


def _adk_says(text: str) -> bool:
    """What the Agent Development Kit tells a model of what its other agents did, or to get it going, is no script."""
    return text.startswith(("For context:", "Continue processing previous requests"))


def _quotes_an_answer(texts: Sequence[str]) -> bool:
    return any(re.match(r"\[[^]]*\] (said:|called tool )", text) for text in texts)


def as_read(body: Any) -> Any:
    """The request with its fields spelt as the service spells them: it takes `mime_type` for `mimeType`. What is the
    user's own is left alone."""
    if isinstance(body, list):
        return [as_read(each) for each in body]
    if not isinstance(body, dict):
        return body
    spelt = {_camel(name): value for name, value in body.items()}
    return {name: value if name in _THEIRS else as_read(value) for name, value in spelt.items()}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


_THEIRS: Final = {"args", "response", "parametersJsonSchema", "labels"}


# What the real service refuses.


def check(contents: Sequence[Content]) -> None:
    """Raises Wrong. Signatures are asked for in the answers to the last text of the user, and nowhere before it."""
    if not contents:
        raise Wrong("contents are not specified")
    for number, content in enumerate(contents):
        if content.get("role", "user") not in ("user", "model"):
            raise Wrong("Please use a valid role: user, model.")
        if not content.get("parts"):
            raise Wrong(f"contents[{number}].parts must not be empty")
        answers = _parts(contents[number + 1], "functionResponse") if number + 1 < len(contents) else []
        _answered(_parts(content, "functionCall"), answers)
        if content.get("role") == "model":
            _signed(contents, number)


def _answered(calls: Sequence[Frame], answers: Sequence[Frame]) -> None:
    if len(calls) != len(answers):
        raise Wrong(
            "Please ensure that the number of function response parts is equal to the number of function call parts"
            " of the function call turn."
        )
    for call, answer in zip(calls, answers, strict=True):
        asked, given = call["functionCall"], answer["functionResponse"]
        if asked["name"] != given["name"] or given.get("id", asked.get("id")) != asked.get("id"):
            raise Wrong(f"function response {given['name']} does not answer the call {asked['name']}")
        if not isinstance(given.get("response"), dict):
            raise Wrong("functionResponse.response must be an object")


def _signed(contents: Sequence[Content], number: int) -> None:
    told, done = _told(contents[:number])
    calls = _parts(contents[number], "functionCall")
    current = not any("text" in part for later in contents[number + 1 :] for part in _texts(later))
    if calls and current and not _same(calls[0].get("thoughtSignature"), signature(told, done)):
        raise Wrong(f"Function call `{calls[0]['functionCall']['name']}` is missing a thought_signature in content")


def _texts(content: Content) -> Sequence[Frame]:
    return [] if content.get("role") == "model" else content["parts"]


def _parts(content: Content, kind: str) -> list[Frame]:
    return [part for part in content["parts"] if kind in part]


def _same(given: str | None, wanted: str) -> bool:
    """The service takes both alphabets of base64."""
    return given is not None and base64.urlsafe_b64decode(given.translate(_URLSAFE)) == base64.b64decode(wanted)


_URLSAFE: Final = str.maketrans("+/", "-_")
