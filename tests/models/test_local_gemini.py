"""The local Gemini refuses what the real one refuses, and runs by itself."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from google import genai
from google.genai import types

from local_gemini import LocalGemini

ROOT = Path(__file__).resolve().parents[2]
HELLO = {"contents": [{"role": "user", "parts": [{"text": "/say 2"}]}]}
USER: Any = {"role": "user", "parts": [{"text": "/tool a"}]}
CALL: Any = {"functionCall": {"name": "a", "args": {}}}
RESULT: Any = {"role": "user", "parts": [{"functionResponse": {"name": "a", "response": {}}}]}


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        ([], "not specified"),
        ([{"role": "assistant", "parts": [{"text": "a"}]}], "valid role"),
        ([{"role": "user", "parts": []}], "must not be empty"),
        ([USER, {"role": "model", "parts": [CALL]}, USER], "number of function response parts"),
        ([USER, {"role": "model", "parts": [CALL]}, RESULT], "missing a thought_signature"),
        ([USER, {"role": "model", "parts": [{**CALL, "thoughtSignature": "eA=="}]}, RESULT], "thought_signature"),
    ],
)
async def test_a_conversation_that_is_none_is_refused(contents: Any, said: str) -> None:
    async with LocalGemini() as service, httpx.AsyncClient(base_url=service.url, trust_env=False) as http:
        answer = await http.post("/v1beta/models/m:streamGenerateContent?alt=sse", json={"contents": contents})
    assert (answer.status_code, answer.json()["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert said in answer.json()["error"]["message"]


async def test_the_sdk_calls_functions_by_itself_with_it() -> None:
    """It sends back every piece of an answer as a content of its own."""

    def book(table: int) -> str:
        return f"table {table}"

    async with LocalGemini() as service:
        client = genai.Client(api_key="k", http_options=types.HttpOptions(base_url=service.url))
        chunks = await client.aio.chats.create(
            model="m", config=types.GenerateContentConfig(tools=[book])
        ).send_message_stream('/say 2\n/tool book {"table": 4}\n/say 2')
        texts = [part.text async for chunk in chunks for part in chunk.parts or [] if part.text]
        await client.aio.aclose()
        client.close()
    assert texts == ["w1 ", "w2 ", "w3 ", "w4 "]


async def test_it_runs_as_a_process_of_its_own() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "local_gemini", "--port", "0", cwd=ROOT, env={**os.environ, "PYTHONPATH": "examples"},
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout
    try:
        url = (await process.stdout.readline()).decode().split()[-1]
        async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
            answer = await http.post("/v1beta/models/m:generateContent", json=HELLO)
    finally:
        process.kill()
        await process.wait()
    parts = answer.json()["candidates"][0]["content"]["parts"]
    assert "".join(part["text"] for part in parts) == "w1 w2 "
