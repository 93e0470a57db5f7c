"""Gemini's written answers, over the vendor's SDK and a real wire; what the service is asked, byte for byte."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from google.genai import types

from legato.errors import ModelFailed, Refused, SettingsError
from legato.models import (
    Answer,
    AssistantMessage,
    CallRequested,
    Message,
    ModelRequest,
    TextChunk,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from legato.models.gemini import Gemini, failures
from legato.tools import Outcome
from local_gemini import Answer as Befalls
from local_gemini import LocalGemini
from models.contract import closing
from models.played import ANSWERS, FAILURES, LONGEST, Case, named, played

ROOT = Path(__file__).resolve().parents[2]
PNG = {"data": "iVBORw0KGgo=", "media_type": "image/png"}
OK: list[Any] = [{"candidates": [{"content": {"role": "model", "parts": [{"text": "ok"}]}, "finishReason": "STOP"}]}]


async def asked(service: LocalGemini, model: Gemini, *messages: Message, **request: Any) -> Any:
    """The body of the request that the service got."""
    service.befall(Befalls(frames=OK))
    async for _ in model.stream(ModelRequest(request.pop("instructions", ""), messages, **request)):
        pass
    return service.seen[-1].body


class TestAnswers:
    @pytest.mark.parametrize("case", ANSWERS, ids=named)
    @pytest.mark.parametrize("piece", [None, 1, 7])
    async def test_a_written_answer_is_read_however_its_bytes_are_cut(
        self, studio: Gemini, service: LocalGemini, case: Case, piece: int | None
    ) -> None:
        service.befall(Befalls(frames=case["frames"], piece=piece))
        said, finished, failed = await played(studio)
        assert (said, failed) == (case["events"], None)
        assert finished
        assert {"reason": finished.finish_reason, "usage": finished.usage} == case["finished"]
        assert finished.vendor == {"role": "model", "parts": case["vendor"]}

    @pytest.mark.parametrize("case", FAILURES, ids=named)
    async def test_a_written_failure_is_told_and_is_no_answer(
        self, gemini: Gemini, service: LocalGemini, case: Case
    ) -> None:
        service.befall(Befalls(frames=case["frames"]))
        said, finished, failed = await played(gemini)
        assert (said, finished) == (case["events"], None)
        assert failed
        told = {"code": failed.code, "retryable": failed.retryable, "says": case["failure"]["says"]}
        assert told == case["failure"]
        assert told["says"] in str(failed)

    @pytest.mark.parametrize("reason", ["LANGUAGE", "NO_IMAGE", "TOO_MANY_TOOL_CALLS", "FINISH_REASON_UNSPECIFIED"])
    async def test_an_end_that_is_no_answers_is_a_failure(
        self, studio: Gemini, service: LocalGemini, reason: str
    ) -> None:
        service.befall(Befalls(frames=[{"candidates": [{"finishReason": reason}]}]))
        _, finished, failed = await played(studio)
        assert failed
        assert (finished, failed.code) == (None, "model_stopped")


class TestFaults:
    @pytest.mark.parametrize("how", [{}, {"torn": True}, {"clean": True}, {"torn": True, "clean": True}], ids=str)
    async def test_a_stream_that_breaks_off_after_any_frame_is_never_an_answer(
        self, studio: Gemini, service: LocalGemini, how: Any
    ) -> None:
        ends = next(n for n, frame in enumerate(LONGEST["frames"]) if "finishReason" in str(frame))
        for after in range(ends + 1):
            service.befall(Befalls(frames=LONGEST["frames"], after=after, cut=True, **how))
            _, finished, failed = await played(studio)
            assert finished is None, after
            assert failed is None or (failed.code, failed.retryable) == ("model_broken_off", True)

    @pytest.mark.parametrize("before", ["", "aa"])
    async def test_a_stream_that_breaks_off_within_a_character_may_be_tried_again(
        self, studio: Gemini, service: LocalGemini, before: str
    ) -> None:
        """Wherever the half of a frame is, one of the two is torn within an ü."""
        frame = {"candidates": [{"content": {"role": "model", "parts": [{"text": before + "ü" * 200}]}}]}
        service.befall(Befalls(frames=[frame], cut=True, torn=True, clean=True))
        _, finished, failed = await played(studio)
        assert failed
        assert (finished, failed.code, failed.retryable) == (None, "model_broken_off", True)

    async def test_what_breaks_behind_the_end_of_an_answer_takes_nothing_from_it(
        self, studio: Gemini, service: LocalGemini
    ) -> None:
        service.befall(Befalls(frames=OK, after=1, cut=True))
        assert (await played(studio)).finished

    @pytest.mark.parametrize("status", [429, 500, 503])
    async def test_an_error_in_mid_stream_may_be_tried_again(
        self, studio: Gemini, service: LocalGemini, status: int
    ) -> None:
        service.befall(Befalls(after=2, status=status))
        said, finished, failed = await played(studio, UserMessage("/say 4"))
        assert (len(said), finished) == (2, None)
        assert failed
        assert failed.retryable

    @pytest.mark.parametrize(
        ("answer", "seconds"),
        [
            (Befalls(status=429, retry_delay=39.5, retry_after=2), 39.5),
            (Befalls(status=503, retry_after=7), 7),
            (Befalls(status=503), None),
            (Befalls(status=429, after=1, retry_delay=1.25), 1.25),
        ],
    )
    async def test_the_delay_that_the_service_asks_for_is_told(
        self, gemini: Gemini, service: LocalGemini, answer: Befalls, seconds: float | None
    ) -> None:
        service.befall(answer)
        failed = (await played(gemini, UserMessage("/say 2"))).failed
        assert failed
        assert (failed.retryable, failed.retry_after) == (True, seconds)
        assert len(service.seen) == 1

    @pytest.mark.parametrize("status", [400, 401, 403, 404])
    async def test_a_request_that_is_refused_is_not_made_again(
        self, studio: Gemini, service: LocalGemini, status: int
    ) -> None:
        service.befall(Befalls(status=status))
        failed = (await played(studio)).failed
        assert failed
        assert (failed.code, failed.retryable) == ("model_refused", False)

    async def test_a_service_that_is_not_there_may_be_tried_again(self) -> None:
        async with LocalGemini() as gone:
            url = gone.url
        async with Gemini(api_key="k", http_options={"base_url": url}) as model:
            failed = (await played(model)).failed
        assert failed
        assert (failed.code, failed.retryable) == ("model_unavailable", True)


class TestConnections:
    async def test_no_call_waits_for_the_end_of_another(self, studio: Gemini) -> None:
        asked = ModelRequest("", (UserMessage("/say 1\n/sleep 60"),))
        async with AsyncExitStack() as stack, asyncio.timeout(20):
            streams = [await stack.enter_async_context(closing(studio.stream(asked))) for _ in range(120)]
            firsts = await asyncio.gather(*map(anext, streams))
        assert set(firsts) == {TextChunk("w1 ")}

    async def test_a_model_serves_one_event_loop_after_another(self) -> None:
        """The first one's connections have died with it."""
        async with LocalGemini(keeps=True) as service:
            assert await self.in_two_loops(service.url) == b"True True\n"

    async def test_connections_are_kept_for_further_calls(self) -> None:
        async with LocalGemini(keeps=True) as service:
            async with Gemini(api_key="k", http_options={"base_url": service.url}) as model:
                assert all([(await played(model, UserMessage("/say 2"))).finished for _ in range(3)])
            assert service.connections == 1

    async def in_two_loops(self, url: str) -> bytes:
        """Whether each loop of one process got an answer."""
        made = f"model = Gemini(api_key='k', http_options={{'base_url': {url!r}}})"
        asks = "print(*[bool(asyncio.run(played(model)).finished) for _ in range(2)])"
        imports = "import asyncio; from legato.models.gemini import Gemini; from models.played import played"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", f"{imports}; {made}; {asks}", cwd=ROOT, env={**os.environ, "PYTHONPATH": "tests"},
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        return (await process.communicate())[0]


class TestRequests:
    async def test_the_address_is_that_of_the_service_asked_for(self, gemini: Gemini, service: LocalGemini) -> None:
        await asked(service, gemini, UserMessage("hello"))
        seen = service.seen[-1]
        studio = "x-goog-api-key" in seen.headers
        where = "" if studio else "/projects/p/locations/europe-west1/publishers/google"
        assert seen.path.endswith(f"{where}/models/gemini-2.5-flash:streamGenerateContent?alt=sse")
        assert studio or seen.headers["authorization"] == "Bearer t"

    async def test_instructions_tools_and_the_vendors_settings_are_sent(self, service: LocalGemini) -> None:
        config = types.GenerateContentConfig(
            temperature=0.5, thinking_config=types.ThinkingConfig(include_thoughts=True)
        )
        spec = ToolSpec("lookup", "Looks up.", {"type": "object", "properties": {"key": {"type": "string"}}})
        async with Gemini(config=config, api_key="k", http_options={"base_url": service.url}) as model:
            body = await asked(service, model, UserMessage("hello"), instructions="Be brief.", tools=(spec,))
        assert body["systemInstruction"]["parts"] == [{"text": "Be brief."}]
        assert body["generationConfig"] == {"temperature": 0.5, "thinkingConfig": {"includeThoughts": True}}
        (declared,) = body["tools"][0]["functionDeclarations"]
        assert (declared["name"], declared["description"]) == ("lookup", "Looks up.")
        assert declared["parametersJsonSchema"] == spec.parameters

    async def test_images_and_files_are_sent_beside_text(self, gemini: Gemini, service: LocalGemini) -> None:
        report = {"uri": "gs://bucket/report.pdf", "media_type": "application/pdf"}
        parts: list[Any] = ["What is this?", PNG, report, {"text": "And that?"}]
        body = await asked(service, gemini, UserMessage({"parts": parts}))
        assert body["contents"][0]["parts"] == [
            {"text": "What is this?"},
            {"inlineData": {"data": "iVBORw0KGgo=", "mimeType": "image/png"}},
            {"fileData": {"fileUri": "gs://bucket/report.pdf", "mimeType": "application/pdf"}},
            {"text": "And that?"},
        ]

    async def test_an_input_that_no_model_can_read_is_refused_with_its_place(self, studio: Gemini) -> None:
        wrong = UserMessage({"parts": ["look", {"data": "not base64!", "media_type": "image/png"}]})
        with pytest.raises(Refused, match=r"input\.parts\[1\]: data"):
            await played(studio, wrong)

    @pytest.mark.parametrize("case", ANSWERS, ids=named)
    async def test_an_answer_goes_back_as_it_came(self, gemini: Gemini, service: LocalGemini, case: Case) -> None:
        service.befall(Befalls(frames=case["frames"]))
        finished = (await played(gemini)).finished
        assert finished
        back = AssistantMessage("", (), finished.vendor)
        body = await asked(service, gemini, UserMessage("a"), back, UserMessage("b"))
        assert body["contents"][1] == {"role": "model", "parts": case["vendor"]}

    async def test_results_go_back_under_the_vendors_names_for_the_calls(
        self, gemini: Gemini, service: LocalGemini
    ) -> None:
        calls = CallRequested("a", {"x": 1}, "v1"), CallRequested("b", None, None, "no arguments")
        outcomes = Outcome(True, [1]), Outcome.failed("denied", "no")
        answers = ToolMessage(tuple(map(Answer, calls, outcomes)))
        body = await asked(service, gemini, UserMessage("a"), AssistantMessage("So:", calls), answers)
        assert body["contents"][1]["parts"] == [
            {"text": "So:"},
            {"functionCall": {"id": "v1", "name": "a", "args": {"x": 1}}},
            {"functionCall": {"name": "b", "args": {}}},
        ]
        assert body["contents"][2]["parts"] == [
            {"functionResponse": {"id": "v1", "name": "a", "response": {"output": [1]}}},
            {"functionResponse": {"name": "b", "response": {"error": {"code": "denied", "message": "no"}}}},
        ]


class TestInstalled:
    def test_a_model_without_a_key_is_refused_when_it_is_made(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI"):
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(SettingsError, match=r"Gemini: .*API key"):
            Gemini()


@pytest.mark.parametrize(("module", "base"), [("aiohttp.client_exceptions", "ClientError"), ("httpx2", "HTTPError")])
def test_a_break_of_any_transport_that_the_sdk_may_find_can_be_tried_again(module: str, base: str) -> None:
    """They are no dependencies of ours; with an agent of ADK the SDK takes one that is installed."""
    error = type("Payload", (type(base, (Exception,), {"__module__": module}),), {"__module__": module})
    with pytest.raises(ModelFailed) as failed, failures():
        raise error("not completed")
    assert (failed.value.code, failed.value.retryable) == ("model_broken_off", True)
