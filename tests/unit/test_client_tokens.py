"""The client whose token ends in mid-stream brings a fresh one, and reads on whatever comes of that."""

from __future__ import annotations

import asyncio

import pytest

from client_play import FINAL, TURN, frames, play, seqs, statuses
from legato import sse
from scripted_server import NO_CONTENT, Answer, dropped, hanging, head, problem, serving

EXPIRING = sse.control("auth.expiring", {"expires_at": 99})


class Expiring:
    """A stream that tells of its token's end, twice, and goes on to its own when `given` is set.

    The last of `answers` to its client's other requests does that.
    """

    def __init__(self, *answers: Answer) -> None:
        self.given = asyncio.Event()
        self.script = [self._stream, *answers[:-1], *([self._last(answers[-1])] if answers else [])]

    async def _stream(self, writer: asyncio.StreamWriter) -> None:
        writer.write(head(200, "text/event-stream", Legato_Stream="st_1") + frames(TURN[:2]) + EXPIRING + EXPIRING)
        await writer.drain()
        await self.given.wait()
        writer.write(b"".join(map(sse.frame, TURN[2:])))

    def _last(self, answer: Answer) -> Answer:
        async def given(writer: asyncio.StreamWriter) -> None:
            self.given.set()
            await answer(writer)

        return given


class Tokens:
    """Where a client gets them. With `refused` it gets no fresh one, and that is set when it asks."""

    def __init__(self, refused: asyncio.Event | None = None) -> None:
        self.asked: list[bool] = []
        self._refused = refused

    async def __call__(self, fresh: bool) -> str:
        self.asked.append(fresh)
        if self._refused and fresh:
            self._refused.set()
            raise RuntimeError("signed out")
        return f"dev:{len(self.asked)}"


async def test_a_fresh_token_is_brought_to_a_stream_whose_token_is_about_to_end() -> None:
    tokens = Tokens()
    async with serving(*Expiring(NO_CONTENT).script) as server:
        run, updates = await play(server, token=tokens)
    assert (run.state, seqs(updates)) == (FINAL, list(range(1, 8)))
    assert (statuses(updates), tokens.asked) == (["connecting", "streaming", "completed"], [False, True])
    _, brought = server.requests
    assert (brought.method, brought.path, brought.body) == ("POST", "/v1/sessions/s_1/auth", {"stream": "st_1"})
    assert brought.headers["authorization"] == "Bearer dev:2"


@pytest.mark.parametrize(
    "answers",
    [[problem(404, "not_found")], [problem(503, "draining")], [dropped], [problem(401, "unauthorized")] * 2],
    ids=["404", "503", "dropped", "401 twice"],
)
async def test_a_stream_that_takes_no_token_is_read_on(answers: list[Answer]) -> None:
    async with serving(*Expiring(*answers).script) as server:
        run, updates = await play(server, token=Tokens())
    assert (run.state, statuses(updates)) == (FINAL, ["connecting", "streaming", "completed"])
    assert [request.path for request in server.requests][1:] == ["/v1/sessions/s_1/auth"] * len(answers)


async def test_a_token_that_cannot_be_had_is_no_failure_of_the_stream(caplog: pytest.LogCaptureFixture) -> None:
    expiring = Expiring()
    tokens = Tokens(refused=expiring.given)
    async with serving(*expiring.script) as server:
        run, _ = await play(server, token=tokens)
    assert (run.state, len(server.requests), tokens.asked) == (FINAL, 1, [False, True])
    assert "st_1: RuntimeError('signed out')" in caplog.text


async def test_the_one_token_there_is_is_not_brought_again() -> None:
    expiring = Expiring()
    asyncio.get_running_loop().call_later(0.1, expiring.given.set)
    async with serving(*expiring.script) as server:
        run, _ = await play(server, token="dev:ann")
    assert (run.state, len(server.requests)) == (FINAL, 1)


async def test_nothing_is_brought_any_more_to_a_stream_that_has_ended() -> None:
    before = asyncio.all_tasks()
    async with serving(*Expiring(hanging).script) as server:
        run, _ = await play(server, token=Tokens())
        running = asyncio.all_tasks() - before
    assert (run.state, len(server.requests)) == (FINAL, 2)
    assert not [task for task in running if "_renew" in str(task)]
