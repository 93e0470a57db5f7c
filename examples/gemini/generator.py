"""What many functions have: a sync generator over the vendor's SDK. Legato takes it as it is, as `generator:agent`."""

from collections.abc import Iterator

from google import genai

client = genai.Client()


def agent(prompt: str) -> Iterator[str]:
    for chunk in client.models.generate_content_stream(model="gemini-2.5-flash", contents=prompt):
        yield chunk.text or ""
