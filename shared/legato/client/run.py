"""One turn, or one session, as a client lives through it: requests, events, pauses, until it is over."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self

import httpx

from legato import sse
from legato.client.policy import Action, Link, Outcome, Plan, Status, Timing
from legato.client.store import Saved, Sent
from legato.client.wire import JSON, STREAM, Wire, problem, retry_after, session_path
from legato.errors import FrameTooLarge, LegatoError, SequenceGap
from legato.events import Event, Record
from legato.turn import ENDED, SessionState, TurnState, reduce, restore
from legato.turn import Status as TurnStatus

log = logging.getLogger("legato.client")

SAVE_EVERY = 1.0
"""Seconds between two writes of a running turn's state; what matters is written at once."""


@dataclass(frozen=True, slots=True)
class Means:
    """What a run is given: the way to the server, time, chance, and where its state is kept."""

    wire: Wire
    timing: Timing
    max_bytes: int
    clock: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]
    chance: Callable[[], float]
    save: Callable[[SessionState, Sent | None], None]


class Update(NamedTuple):
    """Something to show: `event` was reduced into `state`; None when a snapshot came or only the status changed."""

    status: Status
    state: SessionState
    event: Event | None = None
    action: Action | None = None


class Run:
    """Iterate it once, inside `async with`. `status` and `state` are always what should be shown.

    It ends when the turn has ended, or when it cannot be reached: `status` is then `interrupted` and `action` says how
    to go on; `refusal` is the server's last refusal. Raises LegatoError when the request itself is refused for good.
    """

    def __init__(self, means: Means, session: str, saved: Saved, turn_id: str | None) -> None:
        self.session, self.turn_id, self.state = session, turn_id, saved.state
        self.status: Status = "connecting"
        self.action: Action | None = None
        self.refusal: LegatoError | None = None
        self._means = means
        self._sent = saved.sent if saved.sent and saved.sent.turn == turn_id else None
        self._known = self._sent is None or self._stands is not None
        self._outcome = Outcome("broke")
        self._saved_at = means.clock()
        self._dirty = False
        self._hurried = asyncio.Event()
        self._last: TurnState | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._updates = self._live()

    @property
    def turn(self) -> TurnState | None:
        """The turn as far as it is known here; what was seen of it stays, even if its session knows it no more."""
        return self._stands or self._last

    @property
    def _stands(self) -> TurnState | None:
        return self.state.find(self.turn_id) if self.turn_id else self.state.active

    def hurry(self) -> None:
        """What the turn waits for has come: it is reached for now, and not at the next look."""
        self._hurried.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._updates.aclose()
        if self._dirty:
            await self._save()

    def __aiter__(self) -> AsyncIterator[Update]:
        return self._updates

    async def _live(self) -> AsyncGenerator[Update, None]:
        if self._sent:
            await self._save()
        yield Update(self.status, self.state)
        link, plan = Link(contact=self._means.clock()), Plan("connect", "connecting")
        while plan.do in {"connect", "look"}:
            if await self._pause(plan):
                link, plan = link.hurry()
            async with aclosing(self._attempt(plan, link)) as attempt:
                async for update in attempt:
                    yield update
            link, plan = link.after(self._outcome, self._means.timing, self._means.clock(), self._means.chance())
            if self._show(plan.status, plan.action):
                yield Update(self.status, self.state, action=self.action)
        await self._finish(plan)

    async def _pause(self, plan: Plan) -> bool:
        """Waits as planned; True: what the turn waits for has come meanwhile, or before."""
        if plan.status != "waiting":
            await self._means.sleep(plan.delay)
            return False
        waits = [asyncio.ensure_future(self._hurried.wait()), asyncio.ensure_future(self._means.sleep(plan.delay))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        hurried = self._hurried.is_set()
        self._hurried.clear()
        return hurried

    async def _finish(self, plan: Plan) -> None:
        """What is left to `resume` stays stored as sent; a session that is not there is an error to who follows it."""
        if plan.action != "resume":
            self._sent = None
        await self._save()
        if self.refusal and (plan.do == "refuse" or (plan.action == "retry" and not self.turn_id)):
            raise self.refusal

    def _show(self, status: Status, action: Action | None = None) -> bool:
        changed = (status, action) != (self.status, self.action)
        self.status, self.action = status, action
        return changed

    # One request.

    async def _attempt(self, plan: Plan, link: Link) -> AsyncGenerator[Update, None]:
        """Sets `_outcome` to how it ended."""
        seen = _Seen(self._means.clock)
        try:
            response = await self._request(plan, link)
            try:
                async with aclosing(self._answer(response, seen)) as updates:
                    async for update in updates:
                        yield update
            finally:
                await response.aclose()
                await self._renew_no_more()
        except httpx.ReadTimeout:
            self._ended("silent", seen)
        except (httpx.RequestError, httpx.StreamError):
            self._ended("broke", seen)
        except SequenceGap:
            self._ended("gap", seen)
        except (FrameTooLarge, ValueError):
            self._outcome = Outcome("broke", self._turn_status(), moved=seen.moved)

    async def _request(self, plan: Plan, link: Link) -> httpx.Response:
        path, silence = session_path(self.session), self._means.timing.silence
        if plan.do == "look":
            return await self._open("GET", path, silence, plan, headers=JSON)
        if self._sent and not self._known:
            headers = (JSON if link.polls else STREAM) | {"Idempotency-Key": self._sent.turn}
            return await self._open("POST", f"{path}/turns", silence, plan, headers=headers, json=self._sent.body)
        query = {"turn": self.turn_id} if self.turn_id else {}
        if link.polls:
            query["wait"] = str(self._means.timing.wait)
        headers = dict(JSON if link.polls else STREAM)
        if self.state.cursor.seq:
            headers["Last-Event-ID"] = str(self.state.cursor)
        return await self._open("GET", f"{path}/events", silence, plan, headers=headers, params=query)

    async def _open(self, method: str, path: str, silence: float, plan: Plan, **request: Any) -> httpx.Response:
        return await self._means.wire.open(method, path, silence=silence, fresh=plan.fresh_token, **request)

    async def _answer(self, response: httpx.Response, seen: _Seen) -> AsyncGenerator[Update, None]:
        kind = response.headers.get("content-type", "").partition(";")[0].strip()
        if response.status_code == 204:
            self._ended("over", seen)
        elif not response.is_success:
            await response.aread()
            self.refusal = problem(response)
            pause = retry_after(response)
            self._outcome = Outcome("refused", self._turn_status(), code=response.status_code, pause=pause)
        elif kind == sse.MEDIA_TYPE:
            async for update in self._stream(response, seen):
                yield update
        else:
            async for update in self._whole(response, seen):
                yield update

    async def _stream(self, response: httpx.Response, seen: _Seen) -> AsyncGenerator[Update, None]:
        decoder = sse.Decoder(self._means.max_bytes)
        async for chunk in response.aiter_bytes():
            seen.byte()
            if self._show(self._connected()):
                yield Update(self.status, self.state)
            for message in decoder.feed(chunk):
                if message.event == "stream.closing":
                    self._closing(_object(message.data), seen)
                    return
                if message.id is None:
                    self._heed(message, response)
                    continue
                for update in await self._take(message, seen):
                    yield update
                if self._over():
                    self._ended("read", seen)
                    return
        self._ended("broke", seen)

    def _heed(self, message: sse.Message, response: httpx.Response) -> None:
        """A control frame; a fresh token is brought beside the stream, which goes on meanwhile."""
        idle = self._renewing is None or self._renewing.done()
        if message.event == "auth.expiring" and idle and self._means.wire.renews:
            self._renewing = asyncio.create_task(self._renew(response.headers.get("legato-stream", "")))

    async def _renew(self, stream: str) -> None:
        """A stream that is not prolonged is resumed: whatever fails here is no failure of the run."""
        path, silence = f"{session_path(self.session)}/auth", self._means.timing.silence
        try:
            await self._means.wire.ask("POST", path, silence=silence, fresh=True, json={"stream": stream})
        except Exception as failure:
            log.warning("session %s: no fresh token reaches stream %s: %r", self.session, stream, failure)

    async def _renew_no_more(self) -> None:
        renewing, self._renewing = self._renewing, None
        if renewing:
            renewing.cancel()
            await asyncio.wait({renewing})

    def _closing(self, fields: dict[str, Any], seen: _Seen) -> None:
        pause = fields.get("retry_ms")
        self._outcome = Outcome(
            "closed",
            self._turn_status(),
            moved=seen.moved,
            lived=seen.lived,
            reason=str(fields.get("reason", "")),
            pause=pause / 1000 if pause else None,
        )

    async def _take(self, message: sse.Message, seen: _Seen) -> list[Update]:
        if message.event == "snapshot":
            return await self._replace(_object(message.data), seen)
        return await self._reduce(Record.of(message.data).decode(), seen)

    async def _whole(self, response: httpx.Response, seen: _Seen) -> AsyncGenerator[Update, None]:
        """A long poll's answer, a snapshot, or the 202 of a turn started without a stream."""
        fields = _object(await response.aread())
        seen.byte()
        self._show(self._connected())
        if response.status_code == 202:
            self._known = seen.moved = True
        elif "cursor" not in fields:
            raise ValueError("neither a snapshot nor a poll's answer")
        found = fields if "active" in fields else fields.get("snapshot")
        if found:
            for update in await self._replace(found, seen):
                yield update
        for event in fields.get("events", []):
            for update in await self._reduce(Event.of(event), seen):
                yield update
        took = self._means.clock() - seen.asked
        self._outcome = Outcome("read", self._turn_status(), moved=seen.moved, lived=took)

    # What the answers change.

    async def _replace(self, fields: dict[str, Any], seen: _Seen) -> list[Update]:
        state = restore(fields)
        self._known = True
        if state == self.state:
            return []
        if self.turn_id:
            self._last = self.turn
        seen.moved, self.state = True, state
        await self._save()
        self._show(self._connected())
        return [Update(self.status, self.state)]

    async def _reduce(self, event: Event, seen: _Seen) -> list[Update]:
        self._known = True
        state = reduce(self.state, event)
        if state is self.state:
            return []
        seen.moved = True
        self.state, self._dirty = state, True
        if self._means.clock() - self._saved_at >= SAVE_EVERY:
            await self._save()
        self._show(self._connected())
        return [Update(self.status, self.state, event)]

    async def _save(self) -> None:
        self._saved_at, self._dirty = self._means.clock(), False
        sent = None if self._over() else self._sent
        await asyncio.to_thread(self._means.save, self.state, sent)

    def _ended(self, kind: Any, seen: _Seen) -> None:
        self._outcome = Outcome(kind, self._turn_status(), moved=seen.moved, lived=seen.lived)

    def _turn_status(self) -> TurnStatus | None:
        return self._stands.status if self._stands else None

    def _over(self) -> bool:
        return self._turn_status() in ENDED

    def _connected(self) -> Status:
        return self._turn_status() or "streaming"


def _object(text: str | bytes) -> dict[str, Any]:
    fields = json.loads(text)
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    return fields


class _Seen:
    """What one answer has brought so far; it was asked for at `asked`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.asked = clock()
        self.first: float | None = None
        self.last = 0.0
        self.moved = False

    def byte(self) -> None:
        self.last = self._clock()
        self.first = self.last if self.first is None else self.first

    @property
    def lived(self) -> float:
        return 0.0 if self.first is None else self.last - self.first
