"""How long a stream may be read, in virtual time: its caller's token runs out, and fresh ones are left for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.admission import Admission, Admissions, Terms, fresher, terms
from legato.auth import Developers
from legato.engine.runtime import Runtime
from legato.errors import JournalUnavailable, NotFound
from legato.journal import Commit, Journal, SessionKey
from legato.principal import Principal
from legato.settings import Settings
from simulation.loop import VirtualLoop, new_loop
from simulation.store import Store

KEY = SessionKey("ann", "s1")
NOW = 1_796_050_000_000
HOUR = 3_600_000


class Kept:
    """The journal of a test: what it is asked is in `asked`, and while it is `away` it does not answer."""

    def __init__(self) -> None:
        self.store = Store(lambda key, segment: None, lambda key, marks: None)
        self.asked: list[str] = []
        self.away = False
        self.taken_after = self.answers_after = 0.0
        self.then: Callable[[], None] = _nothing

    async def private(self, key: SessionKey, turn: str, now: int) -> dict[str, str]:
        self._ask("read")
        found = self.store.private(key, turn, now)
        self.then()
        await asyncio.sleep(0.001)
        return found

    async def commit(self, key: SessionKey, commit: Commit) -> Commit:
        [private] = commit.private
        self._ask("delete" if private.text is None else "write")
        return await asyncio.shield(asyncio.ensure_future(self._taken(key, commit)))

    async def _taken(self, key: SessionKey, commit: Commit) -> Commit:
        """Whoever asked for it may have left."""
        await asyncio.sleep(self.taken_after)
        committed = self.store.commit(key, commit)
        await asyncio.sleep(self.answers_after)
        return committed

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if self.away:
            raise JournalUnavailable("away")

    @property
    def documents(self) -> int:
        return len(self.store.of(KEY).private)


def _nothing() -> None:
    """What happens behind a read, but for a test that says otherwise."""


class World:
    """One stream's admission. `told` is every `expires_at` that its client was told, and when, in seconds of life.

    A client that is told may answer at once: what takes its answer has to be there.
    """

    def __init__(self, loop: VirtualLoop, life: int | None = HOUR) -> None:
        self.loop, self.kept, self.set_by = loop, Kept(), 0
        settings = Settings()
        runtime = Runtime(cast(Journal, self.kept), settings, self.clock, lambda: "st1", "i1")
        self.admissions = Admissions(runtime, Developers(self.clock))
        self.expires_at = None if life is None else self.clock() + life
        self.told: list[tuple[int, float]] = []
        self.stream: Admission = self.admissions.of(KEY, Principal("ann", self.expires_at))
        self.stream.begin(self._woken)

    def clock(self) -> int:
        return NOW + int(self.loop.time() * 1000) + self.set_by

    def _woken(self) -> None:
        if notice := self.stream.notice():
            assert self.kept.documents == 1
            [_, data, *_] = notice.decode().split("\n")
            self.told.append((json.loads(data.removeprefix("data: "))["expires_at"], self.loop.time()))

    async def bring(self, expires_at: int | None, stream: str = "st1", key: SessionKey = KEY) -> None:
        await self.admissions.prolong(key, stream, expires_at)

    async def over(self) -> float:
        """Seconds of life at which it was over."""
        while not self.stream.over:  # noqa: ASYNC110 - a clock tells nobody
            await asyncio.sleep(self.stream.left)
        return self.loop.time()

    async def leave(self) -> None:
        self.stream.end()
        await asyncio.sleep(1)


Play = Callable[[World], Awaitable[Any]]


def live(play: Play, life: int | None = HOUR) -> World:
    """Plays it to its end."""
    loop = new_loop()

    async def lived() -> World:
        world = World(loop, life)
        await play(world)
        await world.leave()
        return world

    return loop.run(lived())


@given(life=st.integers(0, 10**8), chance=st.floats(0, 1, exclude_max=True))
def test_a_stream_is_told_then_looks_then_closes_and_then_its_token_ends(life: int, chance: float) -> None:
    found = terms(NOW + life, NOW, chance)
    assert found
    assert found.telling == NOW + life - min(60_000, life // 2)
    assert NOW <= found.telling <= found.looking <= found.closing <= NOW + life
    assert found.closing < NOW + life or life < 10
    assert found.closing >= NOW + life - 5_000


def test_streams_of_one_token_close_apart_from_one_another() -> None:
    assert terms(NOW + HOUR, NOW, 0.0) == Terms(NOW + HOUR - 60_000, NOW + HOUR - 4_500, NOW + HOUR - 2_500)
    assert terms(NOW + HOUR, NOW, 0.5) == Terms(NOW + HOUR - 60_000, NOW + HOUR - 5_750, NOW + HOUR - 3_750)


def test_a_token_that_never_ends_is_fresher_than_any_that_does() -> None:
    assert [fresher(2, 1), fresher(None, 1)] == [True, True]
    assert [fresher(1, 1), fresher(1, 2), fresher(1, None), fresher(None, None)] == [False] * 4


@pytest.mark.parametrize(("life", "ahead"), [(HOUR, 60), (100_000, 50), (5_000, 2.5)])
def test_the_client_is_told_once_sixty_seconds_or_half_of_a_short_life_ahead(life: int, ahead: float) -> None:
    world = live(World.over, life)
    [(expires_at, at)] = world.told
    assert expires_at == world.expires_at
    assert at == pytest.approx(life / 1000 - ahead, abs=0.01)


@pytest.mark.parametrize(("life", "earliest"), [(HOUR, 3595), (5_000, 4)])
def test_without_a_fresh_token_it_is_over_a_little_before_the_end(life: int, earliest: float) -> None:
    async def play(world: World) -> None:
        assert earliest <= await world.over() < life / 1000

    assert live(play, life).kept.asked == ["write", "read", "delete"]


def test_a_fresh_token_prolongs_it_and_the_client_is_told_of_its_end_too() -> None:
    async def play(world: World) -> None:
        await asyncio.sleep(3550)
        await world.bring(world.clock() + HOUR)
        assert await world.over() > 3550 + 3590

    world = live(play)
    assert [round(at) for _, at in world.told] == [3540, 3550 + 3540]
    assert world.kept.asked == ["write", "read", "write", "read", "read", "read", "delete"]


def test_a_token_brought_before_its_client_is_told_again_is_taken_without_telling() -> None:
    async def play(world: World) -> None:
        for at in (3550, 5000):
            await asyncio.sleep(at - world.loop.time())
            await world.bring(world.clock() + HOUR)
        assert await world.over() > 5000 + 3590

    assert [round(at) for _, at in live(play).told] == [3540, 5000 + 3540]


def test_a_token_that_never_ends_prolongs_it_for_good() -> None:
    async def play(world: World) -> None:
        await asyncio.sleep(3550)
        await world.bring(None)
        await asyncio.sleep(10 * HOUR / 1000)
        assert not world.stream.over

    assert len(live(play).told) == 1


@pytest.mark.parametrize("later", [0, -1000])
def test_a_token_that_is_no_fresher_changes_nothing(later: int) -> None:
    async def play(world: World) -> None:
        await asyncio.sleep(3550)
        assert world.expires_at
        await world.bring(world.clock() + HOUR)
        await world.bring(world.expires_at + later)
        assert await world.over() > 3550 + 3590

    assert live(play).kept.asked[:5] == ["write", "read", "write", "read", "read"]


def test_a_stream_that_leaves_ahead_of_its_token_costs_nothing() -> None:
    async def play(world: World) -> None:
        await asyncio.sleep(3500)

    assert live(play).kept.asked == []


def test_a_stream_leaves_nothing_behind() -> None:
    async def play(world: World) -> None:
        await asyncio.sleep(3550)
        assert world.kept.documents == 1

    assert live(play).kept.documents == 0


def test_a_stream_that_leaves_while_its_document_is_written_leaves_nothing_behind() -> None:
    async def play(world: World) -> None:
        world.kept.answers_after = 10.0
        await asyncio.sleep(3545)
        assert (world.kept.documents, world.told) == (1, [])
        world.stream.end()
        world.kept.answers_after = 0.0
        await asyncio.sleep(10)

    assert live(play).kept.documents == 0


def test_a_stream_that_leaves_before_its_document_has_arrived_leaves_nothing_behind() -> None:
    async def play(world: World) -> None:
        world.kept.taken_after = 10.0
        await asyncio.sleep(3545)
        assert world.kept.documents == 0
        world.stream.end()
        world.kept.taken_after = 0.0
        await asyncio.sleep(20)

    assert live(play).kept.documents == 0


def test_a_stream_that_ends_while_its_document_is_deleted_leaves_nothing_behind() -> None:
    async def play(world: World) -> None:
        await asyncio.sleep(3550)
        world.kept.taken_after = 2.5
        await world.over()
        assert world.kept.documents == 1

    assert live(play).kept.documents == 0


def test_a_stream_without_an_end_of_its_token_is_never_over() -> None:
    async def play(world: World) -> None:
        await asyncio.sleep(100 * HOUR / 1000)
        assert not world.stream.over

    world = live(play, life=None)
    assert (world.told, world.kept.asked) == ([], [])


def test_a_journal_that_does_not_answer_lets_it_outlive_no_token() -> None:
    async def play(world: World) -> None:
        await asyncio.sleep(3550)
        await world.bring(world.clock() + HOUR)
        world.kept.away = True
        assert await world.over() < 3600

    live(play)


def test_a_journal_that_answers_again_in_time_prolongs_it() -> None:
    async def play(world: World) -> None:
        await asyncio.sleep(3550)
        await world.bring(world.clock() + HOUR)
        world.kept.away = True
        reads = world.kept.asked.count("read")
        while world.kept.asked.count("read") == reads:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        world.kept.away = False
        assert await world.over() > 3600

    live(play)


def test_a_client_is_not_told_before_its_answer_could_be_left() -> None:
    async def play(world: World) -> None:
        world.kept.away = True
        await world.over()

    assert live(play).told == []


def test_a_wall_clock_that_is_set_forward_ends_it_by_the_clock() -> None:
    async def play(world: World) -> None:
        await asyncio.sleep(10)
        world.set_by = HOUR - 50_000
        await asyncio.sleep(9)
        assert len(world.told) == 1
        assert not world.stream.over
        world.set_by = HOUR
        assert world.stream.over

    live(play)


@pytest.mark.parametrize(
    ("stream", "key"), [("st2", KEY), ("st1", SessionKey("bob", "s1")), ("st1", SessionKey("ann", "s2"))]
)
def test_a_token_for_a_stream_that_its_bringer_has_not_got_in_the_session_is_refused(
    stream: str, key: SessionKey
) -> None:
    async def play(world: World) -> None:
        await asyncio.sleep(3550)
        with pytest.raises(NotFound):
            await world.bring(None, stream, key)
        assert await world.over() < 3600

    live(play)


def test_a_stream_that_has_ended_takes_no_token() -> None:
    async def play(world: World) -> None:
        await asyncio.sleep(3550)
        await world.leave()
        with pytest.raises(NotFound):
            await world.bring(None)

    live(play)


def test_a_token_that_comes_while_its_stream_ends_is_refused_and_leaves_nothing_behind() -> None:
    async def play(world: World) -> None:
        await asyncio.sleep(3550)
        world.kept.then = world.stream.end
        with pytest.raises(NotFound):
            await world.bring(world.clock() + HOUR)

    assert live(play).kept.documents == 0


def test_a_caller_is_let_wait_for_an_answer_no_longer_than_its_token_lasts() -> None:
    async def play(world: World) -> None:
        assert 4 <= world.admissions.patience(Principal("ann", world.clock() + 5_000)) < 5
        assert world.admissions.patience(Principal("ann")) > HOUR

    live(play)
