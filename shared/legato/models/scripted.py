"""The scripted model: it says what the user's input tells it to, so that a gap or a repeat can be seen. Needs no key.

Plain lines are answered word by word. Directives: `/say WORDS [PER_SECOND]`, `/think WORDS`, `/tool NAME {json}`,
`/parallel NAME {json} NAME {json} ...`, `/sleep SECONDS`, `/fail MESSAGE`, `/drop`. A tool line ends a model call; the
next call goes on after it, and so does the numbering of the words.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, Final

from pydantic import JsonValue

from legato.errors import ModelFailed
from legato.models import (
    AssistantMessage,
    CallRequested,
    Finished,
    ModelEvent,
    ModelRequest,
    ReasoningChunk,
    TextChunk,
    UserMessage,
)

PLAIN_PER_SECOND: Final = 20.0
_UNPACED_BURST: Final = 16
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_JSON: Final = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Say:
    """Words in order, each with the space that follows it; `rate` is words a second, None as fast as they are taken."""

    words: Iterator[str]
    rate: float | None
    chunk: type[TextChunk] | type[ReasoningChunk] = TextChunk


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float


@dataclass(frozen=True, slots=True)
class Fail:
    message: str


@dataclass(frozen=True, slots=True)
class Drop:
    pass


Directive = Say | CallRequested | Sleep | Fail | Drop


class ScriptedModel:
    """A model that follows a script: what it does is a function of the request alone."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """One model call. Raises ModelFailed: `scripted` at a `/fail`, `bad_directive` where the script is wrong."""
        script, done = _position(request)
        directives, said = _Script(script).call(done), 0
        for directive in directives:
            match directive:
                case Say(words, rate, chunk):
                    pace = _Pace(rate)
                    for word in words:
                        await pace.beat()
                        said += 1
                        yield chunk(word)
                case CallRequested():
                    yield directive
                case Sleep(seconds):
                    await asyncio.sleep(seconds)
                case Fail(message):
                    raise ModelFailed("scripted", message)
                case Drop():
                    return
        yield Finished(_reason(directives), {"input_tokens": len(script.split()), "output_tokens": said})


def _reason(directives: list[Directive]) -> str:
    return "tool_calls" if any(isinstance(directive, CallRequested) for directive in directives) else "stop"


def _position(request: ModelRequest) -> tuple[str, int]:
    """The script of this turn, and how many model calls it has had."""
    done = 0
    for message in reversed(request.messages):
        if isinstance(message, UserMessage):
            return _text(message.content), done
        done += isinstance(message, AssistantMessage)
    return "", done


def _text(content: JsonValue) -> str:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


class _Pace:
    """Beats on a schedule fixed at the start, so that late ones do not push the rest back."""

    def __init__(self, rate: float | None) -> None:
        self._rate, self._count = rate, 0
        self._clock = asyncio.get_running_loop().time
        self._start = self._clock()

    async def beat(self) -> None:
        if self._rate is not None:
            await asyncio.sleep(max(0.0, self._start + self._count / self._rate - self._clock()))
        elif self._count % _UNPACED_BURST == 0:
            await asyncio.sleep(0)
        self._count += 1


class _Script:
    """Reads a script; words and thoughts are numbered through the whole of it."""

    def __init__(self, script: str) -> None:
        self._lines = script.split("\n")
        self._words = self._thoughts = 0

    def call(self, number: int) -> list[Directive]:
        """What the model call `number` (0, 1, ...) does: what stands between two lines that ask for tools."""
        calls: list[list[Directive]] = [[]]
        for index, line in enumerate(self._lines, 1):
            try:
                directives = self._read(line)
            except ValueError as wrong:
                raise ModelFailed("bad_directive", f"line {index} of the script: {wrong}") from None
            calls[-1].extend(directives)
            if isinstance(directives[-1], CallRequested):
                calls.append([])
        return calls[number] if number < len(calls) else []

    def _read(self, line: str) -> list[Directive]:
        if line.startswith("/"):
            return self._directive(line)
        return [Say((word + " " for word in line.split(" ") if word), PLAIN_PER_SECOND)]

    def _directive(self, line: str) -> list[Directive]:
        verb, _, rest = line.strip().partition(" ")
        match verb, rest.split():
            case "/say", [count, *rate] if len(rate) <= 1:
                first, self._words = self._words, self._words + _count(count)
                return [Say(_numbered(first, self._words), _number(rate[0], "PER_SECOND") if rate else None)]
            case "/think", [count]:
                first, self._thoughts = self._thoughts, self._thoughts + _count(count)
                return [Say(_numbered(first, self._thoughts), None, ReasoningChunk)]
            case "/tool", [_, *_]:
                return _calls(rest, most=1)
            case "/parallel", [_, *_]:
                return _calls(rest)
            case "/sleep", [seconds]:
                return [Sleep(_number(seconds, "SECONDS", least=0))]
            case "/fail", [_, *_]:
                return [Fail(rest.strip())]
            case "/drop", []:
                return [Drop()]
        raise ValueError(f"{line.strip()!r}: expected {_USAGE.get(verb, 'one of ' + ', '.join(_USAGE.values()))}")


_USAGE: Final = {
    "/say": "/say WORDS [PER_SECOND]",
    "/tool": "/tool NAME {json}",
    "/parallel": "/parallel NAME {json} NAME {json} ...",
    "/think": "/think WORDS",
    "/sleep": "/sleep SECONDS",
    "/fail": "/fail MESSAGE",
    "/drop": "/drop",
}


def _numbered(first: int, last: int) -> Iterator[str]:
    return (f"w{number + 1} " for number in range(first, last))


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text, re.ASCII):
        raise ValueError(f"WORDS is {text!r}, expected a number of words")
    return int(text)


def _number(text: str, name: str, least: float = 1e-6) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not least <= number < math.inf:
        raise ValueError(f"{name} is {text!r}, expected a number {'from 0' if least == 0 else 'above 0'}")
    return number


def _calls(text: str, most: int | None = None) -> list[Directive]:
    calls: list[Directive] = []
    rest = text.strip()
    while rest:
        found = _NAME.match(rest)
        if not found or len(calls) == most:
            raise ValueError(f"expected {'nothing more' if found else 'the name of a tool'} at {rest[:40]!r}")
        arguments, rest = _arguments(rest[found.end() :].lstrip())
        calls.append(CallRequested(found[0], arguments))
    return calls


def _arguments(text: str) -> tuple[Any, str]:
    """The JSON value at the start of `text`, none being `{}`, and what follows it."""
    if not text or _NAME.match(text):
        return {}, text
    try:
        value, end = _JSON.raw_decode(text)
    except (ValueError, RecursionError) as wrong:
        raise ValueError(f"expected JSON at {text[:40]!r}: {wrong}") from None
    return value, text[end:].lstrip()
