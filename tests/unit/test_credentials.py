"""A token is fetched once for all who ask, again ahead of its expiry, and is seen by nobody but who it is for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from harness.issuer import Issuer
from legato import Tool, ToolContext, ToolFailed, tool
from legato.app import now
from legato.credentials import Credential, Shared, Token
from legato.credentials.google import refresh_token

HOUR = 3_600_000


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


class Mint:
    """A source of `secret-1`, `secret-2` ...; it stands while `open` is not set, and fails with `failure`."""

    def __init__(self, clock: Clock, life: int | None = HOUR) -> None:
        self.clock, self.life = clock, life
        self.fetches = 0
        self.failure: BaseException | None = None
        self.open = asyncio.Event()
        self.open.set()

    async def fetch(self) -> Token:
        self.fetches += 1
        await self.open.wait()
        if self.failure:
            raise self.failure
        return Token(f"secret-{self.fetches}", None if self.life is None else self.clock.now + self.life)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def mint(clock: Clock) -> Mint:
    return Mint(clock)


@pytest.fixture
async def shared(mint: Mint, clock: Clock) -> Shared:
    return Shared("bank", mint, clock)


async def settled() -> None:
    """Returns when what is fetched beside those who ask has come as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_many_who_ask_at_once_share_one_fetch(shared: Shared, mint: Mint) -> None:
    given = await asyncio.gather(*(shared.token() for _ in range(20)))
    assert ({token.value for token in given}, mint.fetches) == ({"secret-1"}, 1)


async def test_who_is_cancelled_takes_nothing_from_the_others(shared: Shared, mint: Mint) -> None:
    mint.open.clear()
    first, other = asyncio.create_task(shared.token()), asyncio.create_task(shared.token())
    await settled()
    first.cancel()
    await asyncio.wait({first})
    mint.open.set()
    assert first.cancelled()
    assert ((await other).value, mint.fetches) == ("secret-1", 1)


@pytest.mark.parametrize(("life", "ahead"), [(HOUR, 225_000), (3000, 750)])
async def test_a_token_is_fetched_ahead_of_its_expiry_and_nobody_waits_for_that(
    mint: Mint, clock: Clock, life: int, ahead: int
) -> None:
    mint.life, shared = life, Shared("bank", mint, clock)
    await shared.token()
    clock.now += life - ahead - 1
    assert ((await shared.token()).value, mint.fetches) == ("secret-1", 1)
    clock.now += 1
    mint.open.clear()
    assert (await shared.token()).value == "secret-1"
    await settled()
    mint.open.set()
    await settled()
    assert ((await shared.token()).value, mint.fetches) == ("secret-2", 2)


async def test_a_token_about_to_expire_is_not_handed_out(shared: Shared, clock: Clock) -> None:
    await shared.token()
    clock.now += HOUR - 9_000
    assert (await shared.token()).value == "secret-2"


async def test_a_token_for_good_is_fetched_once(shared: Shared, mint: Mint, clock: Clock) -> None:
    mint.life = None
    await shared.token()
    clock.now += 1000 * HOUR
    assert ((await shared.token()).value, mint.fetches) == ("secret-1", 1)


async def test_a_token_that_counts_outlives_a_refresh_that_fails(shared: Shared, mint: Mint, clock: Clock) -> None:
    await shared.token()
    mint.failure = RuntimeError("down")
    clock.now += HOUR - 1_000
    assert (await shared.token()).value == "secret-1"
    clock.now += 1_000
    with pytest.raises(ToolFailed):
        await shared.token()


async def test_a_refresh_that_fails_is_tried_again_later_and_later(shared: Shared, mint: Mint, clock: Clock) -> None:
    await shared.token()
    mint.failure = RuntimeError("down")
    clock.now += HOUR - 200_000
    tried = list[int]()
    for passed in range(0, 10_000, 100):
        before = mint.fetches
        await shared.token()
        await settled()
        tried += [passed] if mint.fetches > before else []
        clock.now += 100
    assert tried == [0, 500, 1500, 3500, 7500]


async def test_a_source_is_asked_again_by_the_next_one_where_there_is_no_token(shared: Shared, mint: Mint) -> None:
    mint.failure = RuntimeError("down")
    with pytest.raises(ToolFailed):
        await shared.token()
    mint.failure = None
    assert (await shared.token()).value == "secret-2"


async def test_a_source_that_is_silent_is_given_up(shared: Shared, mint: Mint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legato.credentials.FETCH_SECONDS", 0.05)
    mint.open.clear()
    with pytest.raises(ToolFailed, match="TimeoutError"):
        await shared.token()


async def test_a_token_that_had_expired_when_it_was_given_is_none(shared: Shared, mint: Mint) -> None:
    mint.life = 0
    with pytest.raises(ToolFailed, match="expired when it was given"):
        await shared.token()


async def test_one_refused_token_is_fetched_anew_once_for_all_who_were_refused(shared: Shared, mint: Mint) -> None:
    refused = await shared.token()
    given = await asyncio.gather(*(shared.instead_of(refused) for _ in range(20)))
    late = await shared.instead_of(refused)
    assert ({token.value for token in [*given, late]}, mint.fetches) == ({"secret-2"}, 2)


@pytest.mark.parametrize("failure", [SystemExit(1), asyncio.CancelledError()])
async def test_a_source_that_exits_ends_no_process(shared: Shared, mint: Mint, failure: BaseException) -> None:
    """Nor the call, where what was cancelled is a task of its own."""
    mint.failure = failure
    with pytest.raises(ToolFailed, match=type(failure).__name__):
        await shared.token()


async def test_nothing_of_a_failing_source_or_a_token_is_told(
    shared: Shared, mint: Mint, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    token = await shared.token()
    mint.failure = RuntimeError("the password hunter2 is wrong")
    with pytest.raises(ToolFailed) as failed:
        await shared.instead_of(token)
    said = f"{failed.value.code} {failed.value} {token!r} {Credential('bank', shared, None)!r} {caplog.text}"
    assert failed.value.code == "credential_unavailable"
    assert "RuntimeError" in said
    assert not {word for word in ("hunter2", "secret-1") if word in said}


async def test_a_source_may_say_by_itself_why_it_has_none(shared: Shared, mint: Mint) -> None:
    mint.failure = ToolFailed("not_linked", "link your bank first")
    with pytest.raises(ToolFailed, match="link your bank first") as failed:
        await shared.token()
    assert failed.value.code == "not_linked"


# What a tool is given.


def context(shared: Shared) -> ToolContext:
    return ToolContext("s/t/1-1", credentials={"bank": shared}.__getitem__)


async def test_a_tool_is_given_the_text_of_a_token(shared: Shared) -> None:
    @tool(effect="read")
    async def waiting(*, turn: ToolContext) -> str:
        return await turn.credentials("bank")

    @tool(effect="read")
    def blocking(*, turn: ToolContext) -> str:
        return turn.credentials("bank").get()

    @tool(effect="read")
    def loop_of_its_own(*, turn: ToolContext) -> str:
        async def ask() -> str:
            return await turn.credentials("bank")

        return asyncio.run(ask())

    for each in (waiting, blocking, loop_of_its_own):
        assert (await each.run({}, context(shared))).content == "secret-1"


async def test_blocking_in_the_event_loop_is_refused_and_does_not_hang(shared: Shared) -> None:
    @tool(effect="read")
    async def wrong(*, turn: ToolContext) -> str:
        return turn.credentials("bank").get()

    error = (await wrong.run({}, context(shared))).error
    assert error
    assert "await it here" in error.message


async def test_a_credential_that_is_nowhere_is_an_error_of_its_own() -> None:
    @tool(effect="read")
    async def lost(*, turn: ToolContext) -> str:
        return await turn.credentials("bank")

    error = (await lost.run({}, ToolContext("k"))).error
    assert error
    assert error.code == "credential_unknown"


# Its requests.


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as running:
        yield running


class Poster:
    """A tool that posts a body with its credential; counts how often it was entered."""

    def __init__(self, url: str) -> None:
        self.url, self.entered = f"{url}/api", 0

    async def post(self, *, turn: ToolContext) -> int:
        self.entered += 1
        async with httpx.AsyncClient(auth=turn.credentials("bank"), trust_env=False) as http:
            return (await http.post(self.url, content=_pieces())).status_code

    def post_in_a_thread(self, *, turn: ToolContext) -> int:
        self.entered += 1
        with httpx.Client(auth=turn.credentials("bank"), trust_env=False) as http:
            return http.post(self.url, content=iter([b"bo", b"dy"])).status_code


async def _pieces() -> AsyncIterator[bytes]:
    yield b"bo"
    yield b"dy"


@pytest.fixture
def poster(issuer: Issuer) -> Poster:
    return Poster(issuer.url)


@pytest.fixture
def bank(issuer: Issuer) -> Shared:
    return Shared("bank", refresh_token("r", "id", "client-secret", f"{issuer.url}/token"), now)


@pytest.fixture(params=["post", "post_in_a_thread"])
def post(request: pytest.FixtureRequest, poster: Poster) -> Tool:
    return tool(effect="once")(getattr(poster, request.param))


async def test_a_request_is_repeated_once_with_a_fresh_token_and_the_tool_is_not(
    post: Tool, poster: Poster, bank: Shared, issuer: Issuer
) -> None:
    """Its body, which can be read only once, is sent whole both times."""
    issuer.revoked.add("token-1")
    assert (await post.run({}, context(bank))).content == 200
    assert issuer.requests == [("token-1", b"body"), ("token-2", b"body")]
    assert poster.entered == 1


async def test_a_second_401_is_what_the_tool_sees(post: Tool, poster: Poster, bank: Shared, issuer: Issuer) -> None:
    issuer.revoked |= {f"token-{n}" for n in range(1, 9)}
    assert (await post.run({}, context(bank))).content == 401
    assert (issuer.shown(), poster.entered) == (["token-1", "token-2"], 1)


async def test_a_request_is_not_repeated_with_the_token_that_was_refused(
    post: Tool, issuer: Issuer, clock: Clock
) -> None:
    class Same:
        async def fetch(self) -> Token:
            return Token("always")

    assert (await post.run({}, context(Shared("bank", Same(), clock)))).content == 401
    assert issuer.shown() == ["always"]


async def test_twenty_requests_that_are_refused_at_once_cost_one_refresh(
    poster: Poster, bank: Shared, issuer: Issuer
) -> None:
    issuer.revoked.add("token-1")
    each = tool(effect="once")(poster.post)
    outcomes = await asyncio.gather(*(each.run({}, context(bank)) for _ in range(20)))
    assert [outcome.content for outcome in outcomes] == [200] * 20
    assert (len(issuer.grants), poster.entered) == (2, 20)


async def test_a_401_of_somebody_who_was_not_shown_the_token_says_nothing_of_it(bank: Shared, issuer: Issuer) -> None:
    def moved(request: httpx.Request) -> httpx.Response:
        there = request.url.host == "elsewhere"
        return httpx.Response(401) if there else httpx.Response(307, headers={"Location": "http://elsewhere/"})

    credential = Credential("bank", bank, None)
    async with httpx.AsyncClient(auth=credential, transport=httpx.MockTransport(moved), follow_redirects=True) as http:
        answer = await http.get("http://here/")
    assert (answer.status_code, len(issuer.grants)) == (401, 1)


@pytest.mark.parametrize("value", ["a\r\nHost: b", "geheim\u00fc", ""])
async def test_a_token_that_no_header_can_carry_is_not_quoted(post: Tool, clock: Clock, value: str) -> None:
    class Odd:
        async def fetch(self) -> Token:
            return Token(value)

    error = (await post.run({}, context(Shared("bank", Odd(), clock)))).error
    assert error
    assert (error.code, error.message) == (
        "credential_unavailable",
        "credential 'bank' cannot be sent in a header",
    )
