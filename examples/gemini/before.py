"""Before: a function that streams Gemini with Flask and SSE. Whoever loses the stream has lost the answer."""

import json
import os
from collections.abc import Iterator

import flask
import functions_framework
from google import genai
from google.genai import types

client = genai.Client()


def book(table: int) -> str:
    """Books a table."""
    with open(os.environ["BOOKINGS"], "a") as bookings:
        bookings.write(f"table {table}\n")
    return f"table {table} is booked"


@functions_framework.http
def chat(request: flask.Request) -> flask.Response:
    prompt = request.get_json()["prompt"]

    def frames() -> Iterator[str]:
        config = types.GenerateContentConfig(tools=[book])
        for chunk in client.models.generate_content_stream(model="gemini-2.5-flash", contents=prompt, config=config):
            if chunk.text:
                yield f"data: {json.dumps({'text': chunk.text})}\n\n"
        yield "data: [DONE]\n\n"

    return flask.Response(frames(), mimetype="text/event-stream")
