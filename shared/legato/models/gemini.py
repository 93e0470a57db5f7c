"""Gemini, by the vendor's own SDK: AI Studio with a key, Vertex AI with the project's credentials."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, Self

import httpx
from google.auth.exceptions import GoogleAuthError
from pydantic_core import to_json

from legato.errors import ModelFailed, SettingsError
from legato.models import ModelEvent, ModelRequest
from legato.models.gemini_wire import Json, Reading, contents_of, declarations_of, failure_of

try:
    from google import genai
    from google.genai import errors, types
except ImportError as missing:
    raise ImportError("Gemini needs the vendor's SDK: pip install 'legato[gemini]'") from missing

_OPENED: ContextVar[list[httpx.Response]] = ContextVar("the responses to the requests of this model call")
_TRANSPORTS: Final = frozenset([("httpx", "HTTPError"), ("httpx2", "HTTPError"), ("aiohttp", "ClientError")])
_READ: Final = {"candidates", "prompt_feedback", "usage_metadata"}


class Gemini:
    """A model of the Gemini family.

    The SDK finds its own settings: `GEMINI_API_KEY` or `GOOGLE_API_KEY` for AI Studio; `GOOGLE_GENAI_USE_VERTEXAI`,
    `GOOGLE_CLOUD_PROJECT` and `GOOGLE_CLOUD_LOCATION` for Vertex AI. `config` is the vendor's GenerateContentConfig
    (temperature, thinking, safety); `client` are arguments of its Client. Raises SettingsError where it finds neither a
    key nor a project.
    """

    def __init__(
        self, model: str = "gemini-2.5-flash", *, config: types.GenerateContentConfig | None = None, **client: Any
    ) -> None:
        self._model = model
        self._config = config or types.GenerateContentConfig()
        self._arguments = client
        self._loop: asyncio.AbstractEventLoop | None = None
        try:
            self._client, self._http = self._connect()
        except ValueError as wrong:
            raise SettingsError(f"Gemini: {wrong}") from wrong

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """One model call. Raises Refused (`bad_input`) and ModelFailed.

        To be tried again are `model_rate_limited`, `model_unavailable`, `model_broken_off` and `model_bad_call`, a call
        that the service itself found malformed; not so `model_blocked`, `model_stopped` and `model_refused`.
        """
        reading = Reading()
        chunks = await self._here().aio.models.generate_content_stream(
            model=self._model, contents=_contents(request), config=self._configured(request)
        )
        async with _Frames(chunks) as frames:
            while (frame := await frames.next(reading)) is not None:
                for event in reading.take(frame):
                    yield event
        if finished := reading.finished():
            yield finished

    async def aclose(self) -> None:
        """Closes the connections that are kept for further calls."""
        await self._http.aclose()
        self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _configured(self, request: ModelRequest) -> types.GenerateContentConfig:
        """The SDK is to call no function by itself."""
        more: Json = {"automatic_function_calling": types.AutomaticFunctionCallingConfig(disable=True)}
        if request.instructions:
            more["system_instruction"] = request.instructions
        if request.tools:
            declared = types.Tool.model_validate({"functionDeclarations": declarations_of(request.tools)})
            more["tools"] = [*(self._config.tools or []), declared]
        return self._config.model_copy(update=more)

    def _here(self) -> genai.Client:
        """The client of the running loop: connections belong to the loop that has opened them."""
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            self._client, self._http = self._connect()
        self._loop = loop
        return self._client

    def _connect(self) -> tuple[genai.Client, httpx.AsyncClient]:
        """A request is one attempt: the step knows when to try again. No turn waits for another one's connection."""
        http = httpx.AsyncClient(limits=httpx.Limits(max_connections=None), event_hooks={"response": [_note]})
        options = types.HttpOptions.model_validate(self._arguments.get("http_options") or {})
        once = types.HttpRetryOptions(attempts=1)
        options = options.model_copy(update={"httpx_async_client": http, "retry_options": once})
        return genai.Client(**{**self._arguments, "http_options": options}), http


class _Frames:
    """The frames of one answer, as the wire has them. When they are left their response is closed; the SDK would leave
    that to the garbage collector."""

    def __init__(self, chunks: AsyncIterator[types.GenerateContentResponse]) -> None:
        self._chunks = chunks
        self._opened: list[httpx.Response] = []

    async def next(self, reading: Reading) -> Json | None:
        """None at the end. What goes wrong behind the end of a whole answer takes nothing from it."""
        noting = _OPENED.set(self._opened)
        try:
            with failures():
                chunk = await anext(self._chunks, None)
        except ModelFailed:
            if reading.finished():
                return None
            raise
        finally:
            _OPENED.reset(noting)
        return None if chunk is None else chunk.model_dump(mode="json", by_alias=True, exclude_none=True, include=_READ)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for response in self._opened:
            await response.aclose()
        if isinstance(self._chunks, AsyncGenerator):
            await self._chunks.aclose()


async def _note(response: httpx.Response) -> None:
    _OPENED.get([]).append(response)
    response.aiter_lines = partial(_lines, response)  # type: ignore[method-assign]


async def _lines(response: httpx.Response) -> AsyncIterator[str]:
    """The lines of a response; to httpx, by which some versions of the SDK read, U+2028 in a text ends one as well. One
    that breaks off within a character is no JSON either way."""
    rest = b""
    async for piece in response.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.rstrip(b"\r").decode(errors="replace")
    yield rest.decode(errors="replace")


def _contents(request: ModelRequest) -> list[types.ContentUnion]:
    """By way of JSON, where the vendor's types read bytes as base64."""
    return [types.Content.model_validate_json(to_json(content)) for content in contents_of(request.messages)]


@contextmanager
def failures() -> Iterator[None]:
    """What the SDK, its transport and the credentials raise, as ModelFailed."""
    try:
        yield
    except errors.APIError as error:
        raise _answered(error) from error
    except GoogleAuthError as error:
        raise ModelFailed("model_unavailable", f"no credentials: {error}", retryable=error.retryable) from error
    except Exception as error:
        if not _broke(error):
            raise
        never_there = isinstance(error, httpx.ConnectError | OSError)
        said = f"the connection to Gemini broke: {type(error).__name__}: {error}"
        raise ModelFailed("model_unavailable" if never_there else "model_broken_off", said, retryable=True) from error


def _broke(error: Exception) -> bool:
    """The SDK asks by whichever of its transports is installed, aiohttp before httpx where it is given none."""
    bases = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__}
    return isinstance(error, errors.UnknownApiResponseError) or not bases.isdisjoint(_TRANSPORTS)


def _answered(error: errors.APIError) -> ModelFailed:
    told = error.details if isinstance(error.details, dict) else {}
    details = told.get("error", told).get("details") or []
    return failure_of(error.code, error.message or str(error), details, getattr(error.response, "headers", None) or {})
