"""Before: a function that runs the agent with ADK's own Runner. Its sessions die with its instance."""

import json
from collections.abc import Iterator

import flask
import functions_framework
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.runners import InMemoryRunner
from google.genai.types import Content, Part

from adk.bank import root_agent

runner = InMemoryRunner(agent=root_agent)
runner.auto_create_session = True
config = RunConfig(streaming_mode=StreamingMode.SSE)


@functions_framework.http
def chat(request: flask.Request) -> flask.Response:
    message = Content(role="user", parts=[Part(text=request.get_json()["prompt"])])

    def frames() -> Iterator[str]:
        for event in runner.run(user_id="me", session_id="s", new_message=message, run_config=config):
            for part in (event.partial and event.content and event.content.parts) or []:
                if part.text:
                    yield f"data: {json.dumps({'text': part.text})}\n\n"
        yield "data: [DONE]\n\n"

    return flask.Response(frames(), mimetype="text/event-stream")
