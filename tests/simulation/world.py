"""One seed played to its end: instances, a person who starts and cancels turns, clients, and all that can go wrong."""

from __future__ import annotations

import asyncio
from contextvars import Context
from itertools import count
from random import Random
from typing import Any, Literal

from legato.engine.run import StartTurn
from legato.errors import Draining, JournalUnavailable, LegatoError, SessionBusy
from legato.journal import Segment, SessionKey
from legato.journal.wakeups import Marks, Waiters
from legato.settings import Settings
from legato.turn import TurnState, restore
from simulation.client import Client
from simulation.instance import EPOCH_MS, KEY, SKEW_MS, Instance
from simulation.loop import VirtualLoop, new_loop
from simulation.network import Weather
from simulation.store import Store
from simulation.watch import SECRET, Watch
from simulation.work import Plan, draw

SETTLED_SECONDS = 600.0


class World:
    """Everything there is in one seed. `deterministic`: what is drawn depends on the seed alone."""

    def __init__(self, seed: int) -> None:
        self.loop: VirtualLoop = new_loop()
        self.random = Random(seed)
        self.watch = Watch(KEY, self.loop.time, lambda: self.store.of(KEY).lease)
        self.waiters: Waiters[SessionKey] = Waiters()
        self.store = Store(self._written, self._changed)
        self.gentle = self.random.random() < 0.15
        loss = 0.0 if self.gentle else self.random.choice((0.0, 0.02, 0.08, 0.08, 0.2))
        self.weather = Weather(Random(seed + 1), loss)
        approval = Random(seed + 2).choice((5.0, 86400.0, 86400.0))
        self.settings = Settings(journal="sqlite:///nowhere", approval=approval, turns_per_minute=0)
        self._boots = count(1)
        self.ever: list[Instance] = []
        self.instances = [Instance(self, place, next(self._boots)) for place in "abc"[: self.random.choice((2, 3))]]
        self.faulting = not self.gentle
        self.day = asyncio.Event()
        self.day.set()
        self.plans: dict[str, Plan] = {}
        self.sent: set[str] = set()
        self.taken: set[str] = set()
        self.must_stop: set[str] = set()
        self.clients = [self._client(f"client{n}") for n in range(self.random.choice((1, 2)))]
        self._people: list[asyncio.Task[Any]] = []
        self._topic: str | None = None

    async def play(self) -> None:
        """The whole story: turns while faults happen, then calm, then what must be so."""
        people = [self._person(), self._faults(self.random.randint(1, 8))]
        self._people = [self.loop.create_task(work) for work in people]
        followers = [self.loop.create_task(client.live()) for client in self.clients]
        followers.append(self.loop.create_task(self._answerer()))
        try:
            async with asyncio.timeout(400 * 3600):
                await asyncio.gather(*self._people)
        except TimeoutError:
            self.watch.holds(False, "everything comes to rest", "the story does not end")
        self._calm()
        await self._settle()
        for follower in followers:
            follower.cancel()
        await asyncio.wait(followers)
        for follower in followers:
            if not follower.cancelled() and (failure := follower.exception()):
                self.watch.holds(False, "a client never breaks", repr(failure))
        await self._judge()

    # What happens.

    async def _person(self) -> None:
        for number in range(1, self.random.choice((2, 2, 3))):
            turn = f"t{number}"
            self.plans[turn] = draw(self.random)
            for early in (turn, f"t{number + 1}"):
                if self.random.random() < 0.05:
                    await self._cancel(early, 0.0)
            await self._start(turn)
            if self.random.random() < 0.3:
                self._people.append(self.loop.create_task(self._cancel(turn, self.random.uniform(0, 6))))
            if self.random.random() < 0.7:
                await self._until_ended(turn)
            if not self.gentle and self.random.random() < 0.05:
                await self._night()

    async def _start(self, turn: str) -> None:
        """Sends a turn under its id until it is taken, sometimes to two instances at once."""
        taken = False
        while not taken:
            taken = await self._sent(turn)
            await self._pause()

    async def _sent(self, turn: str) -> bool:
        plan = self.plans[turn]
        mode: Literal["reject", "interrupt"] = "interrupt" if self.random.random() < 0.3 else "reject"
        if mode == "interrupt":
            self.watch.cancelled.update(name for name in self.plans if name != turn)
        request = StartTurn(turn, plan.input, plan.agent, if_active=mode)
        twice = [self._one_start(request) for _ in range(self.random.choice((1, 1, 1, 2)))]
        return any(await asyncio.gather(*twice))

    async def _one_start(self, request: StartTurn) -> bool:
        instance = self._choose()
        self.sent.add(request.turn)
        self.watch.note("person", "starts", request.turn, "at", instance.name, request.if_active)
        try:
            started = await instance.ask(instance.gateway.start(KEY, request))
        except (SessionBusy, JournalUnavailable, Draining, TimeoutError) as refused:
            self.watch.note("person", "is refused", repr(refused))
            return False
        self._topic = request.turn
        self.taken.add(request.turn)
        if self.random.random() < 0.3:
            self.clients[0].offer(instance.open(instance.gateway.attach(KEY, started)), started.record.first)
        return True

    async def _cancel(self, turn: str, delay: float) -> None:
        await asyncio.sleep(delay)
        self.watch.cancelled.add(turn)
        while True:
            instance = self._choose()
            self.watch.note("person", "cancels", turn, "at", instance.name)
            try:
                await instance.ask(instance.gateway.cancel(KEY, turn, "asked to", KEY.uid))
                break
            except (LegatoError, TimeoutError):
                await self._pause()
        self.watch.asked(turn)
        if turn not in self.sent:
            self.must_stop.add(turn)

    async def _night(self) -> None:
        """Nobody comes for a day or more, and what has expired is deleted. One instance stands all the while."""
        owners = [instance for instance in self._alive if instance.engine.live]
        sleeper = self.random.choice(owners or self.instances)
        self.watch.note("night falls over", sleeper.name)
        sleeper.standing = True
        for pipe in sleeper.pipes:
            pipe.close()
        if self.random.random() < 0.5:
            await asyncio.sleep(self.random.uniform(0, 60))
        self.day.clear()
        for instance in self.instances:
            if instance is not sleeper:
                self._killed(instance)
        hours = self.random.choice((20, 24, 30, 60))
        await self._days(hours)
        self.must_stop.clear()
        self._wake(sleeper, hours)
        self.day.set()

    def _wake(self, sleeper: Instance, hours: int) -> None:
        """One that still has its turn, and not slept for too long to go on with it, would be past every other bound of
        its turn: it dies."""
        lease = self.store.of(KEY).lease
        if hours * 3600 < self.settings.ttl and lease and lease.expires_at and lease.owner in (sleeper.name, ""):
            self._killed(sleeper)
        else:
            self._thaw(sleeper)

    async def _days(self, hours: int) -> None:
        for _ in range(hours):
            await asyncio.sleep(3600)
            self.store.expire(EPOCH_MS + int(self.loop.time() * 1000), lambda: self.random.random() < 0.3)
        self.watch.morning(self.store.seq(KEY))

    @property
    def _alive(self) -> list[Instance]:
        return [instance for instance in self.instances if not instance.dead]

    async def _answerer(self) -> None:
        """A person who answers what turns ask, sometimes several times at once, through any instance."""
        while True:
            await asyncio.sleep(self.random.uniform(0, 1.5))
            await self._pause()
            if active := self.watch.folds[-1].active:
                await self._answer(active)

    async def _answer(self, active: TurnState) -> None:
        for asked in active.questions:
            answers = [self.random.random() < 0.7 for _ in range(self.random.choice((1, 1, 3)))]
            await asyncio.gather(*(self._decide(active.turn, asked.request, answer) for answer in answers))
        for required in active.credentials:
            times = [self.random.choice((None, None, 0.5, 30.0)) for _ in range(self.random.choice((1, 1, 3)))]
            await asyncio.gather(*(self._supply(active.turn, required.name, time) for time in times))

    async def _decide(self, turn: str, request: str, approved: bool) -> None:
        instance = self._choose()
        self.watch.note("person", "decides", turn, request, approved, "at", instance.name)
        try:
            await instance.ask(instance.gateway.decide(KEY, turn, request, approved, None))
            self.watch.decided(turn, request, approved)
        except (LegatoError, TimeoutError) as refused:
            self.watch.note("person", "is refused", repr(refused))

    async def _supply(self, turn: str, name: str, expires_in: float | None) -> None:
        instance = self._choose()
        self.watch.note("person", "supplies", turn, name, expires_in, "at", instance.name)
        try:
            await instance.ask(instance.gateway.supply(KEY, turn, name, SECRET + turn, expires_in))
        except (LegatoError, TimeoutError) as refused:
            self.watch.note("person", "is refused", repr(refused))

    async def _until_ended(self, turn: str) -> None:
        async with asyncio.timeout(1200):
            while not self._ended(turn):
                await self._pause()

    async def _pause(self) -> None:
        await asyncio.sleep(self.random.uniform(0.05, 0.5))
        await self.day.wait()

    def _ended(self, turn: str) -> bool:
        record = self.store.of(KEY).turns.get(turn)
        return record is not None and record.last is not None

    async def _faults(self, number: int) -> None:
        for _ in range(number):
            await asyncio.sleep(self.random.uniform(0.02, 2.5))
            self._fault()

    def _fault(self) -> None:
        owners = [instance for instance in self._alive if instance.engine.live]
        among = owners if owners and self.random.random() < 0.6 else self._alive
        victim = self.random.choice(among or self.instances)
        harsh = () if self.gentle else ("freeze", "freeze", "kill", "kill", "cut", "drain", "drain", "sweep")
        match self.random.choice(("leave", "leave", *harsh)):
            case "drain":
                self._drain(victim)
            case "sweep":
                self.watch.note(victim.name, "sweeps")
                victim.spawn(victim.sweeper.sweep())
            case "freeze" | "kill" as kind:
                self._stop(victim, kind, 40)
            case "cut":
                self._cut(victim)
            case "leave":
                self._leave()

    def _stop(self, victim: Instance, kind: str, callbacks: int) -> None:
        """In the midst of what it does: after some of its next callbacks."""
        stopped = self._frozen if kind == "freeze" else self._killed
        victim.stop_after(self.random.randint(1, callbacks), lambda: stopped(victim))

    def _strike(self, writer: str) -> None:
        """Now and then it hits who has just written something and does not know it yet."""
        if self.faulting and self.random.random() < 0.03:
            victim = next(instance for instance in self.ever if instance.name == writer)
            if not victim.dead and not victim.standing:
                self._stop(victim, self.random.choice(("freeze", "kill")), 12)

    def strike_tool(self, instance: Instance) -> None:
        """Now and then it hits who has just entered a tool."""
        if self.faulting and self.random.random() < 0.12:
            strike = self.random.choice((self._cut, self._cut, self._cut, self._drain, self._killed))
            self.loop.call_later(self.random.uniform(0, 2), strike, instance, context=Context())

    def _frozen(self, victim: Instance) -> None:
        seconds = self.random.choice((0.5, 3.0, 16.0, 20.0, 40.0))
        self.watch.note(victim.name, "freezes for", seconds)
        self.loop.call_later(seconds, self._thaw, victim, context=Context())

    def _thaw(self, victim: Instance) -> None:
        if victim.standing and not victim.dead:
            self.watch.note(victim.name, "thaws")
            victim.thawed_at = self.loop.time()
            self.loop.resume(victim)

    def _killed(self, victim: Instance) -> None:
        if victim.dead:
            return
        victim.standing = True
        self.watch.note(victim.name, "dies")
        victim.dead = True
        for pipe in victim.pipes:
            pipe.close()
        self.loop.call_later(self.random.uniform(0.2, 8), self._boot, victim, context=Context())

    def _boot(self, victim: Instance) -> None:
        place = self.instances.index(victim)
        self.instances[place] = Instance(self, victim.name[0], next(self._boots))
        self.watch.note(self.instances[place].name, "starts")

    def _drain(self, victim: Instance) -> None:
        """SIGTERM: it has some seconds to let go of its turns."""
        self.watch.note(victim.name, "drains")
        victim.spawn(victim.gateway.drain())
        self.loop.call_later(8.0, self._killed, victim, context=Context())

    def _cut(self, victim: Instance) -> None:
        seconds = self.random.choice((1.0, 8.0, 35.0, 35.0))
        self.watch.note(victim.name, "is cut off for", seconds)
        victim.network.cut = True
        self.loop.call_later(seconds, self._join, victim, context=Context())

    def _join(self, victim: Instance) -> None:
        victim.network.cut = False

    def _leave(self) -> None:
        for client in self.clients:
            if client.pipe and self.random.random() < 0.7:
                self.watch.note(client.name, "loses its connection")
                client.pipe.close()

    def _choose(self) -> Instance:
        """Where a request is led to: any instance that is not known to be dead; one that stands may be among them."""
        return self.random.choice(self._alive or self.instances)

    # The end.

    def _calm(self) -> None:
        self.watch.note("calm")
        self.faulting = False
        self.weather.loss = 0.0
        for instance in self.instances:
            instance.network.cut = False
            self._thaw(instance)
        for client in self.clients:
            client.hurried = True

    async def _settle(self) -> None:
        until = self.loop.time() + SETTLED_SECONDS
        while self.loop.time() < until and not self._settled():
            await self._pause()
        self.watch.holds(self._settled(), "everything comes to rest", self._standing())

    def _settled(self) -> bool:
        last = len(self.watch.log)
        head = self.store.of(KEY).head
        at_rest = (head is None or head.turn is None) and self.taken <= set(self.store.of(KEY).turns)
        states = [client.state for client in self.clients]
        busy = any(instance.engine.live for instance in self._alive)
        return at_rest and not busy and all(state.cursor.seq == last and state.active is None for state in states)

    def _standing(self) -> str:
        clients = [f"{client.name} at {client.state.cursor}" for client in self.clients]
        lives = [f"{instance.name} runs {list(instance.engine.live.values())}" for instance in self.instances]
        return f"{self.store.of(KEY).head} of {len(self.watch.log)}; {clients}; {lives}"

    async def _judge(self) -> None:
        texts = {name: plan.text for name, plan in self.plans.items()}
        turns = self.store.of(KEY).turns
        self.watch.settled(turns, texts, {name for name, plan in self.plans.items() if plan.fails})
        newcomer = Instance(self, "z", next(self._boots))
        fresh = restore(await newcomer.gateway.snapshot(KEY, None))
        for client in self.clients:
            self.watch.caught_up(client.name, client.state, fresh)
        kept = [(turn, name) for turn, name in self.store.of(KEY).private if name.startswith("credential.")]
        self.watch.holds(not kept, "what a user gave goes with the turn", kept)
        for turn in self.must_stop & set(turns):
            self.watch.holds(turns[turn].status == "interrupted", "a cancel before the start is honoured", turn)
        if self.gentle:
            self.watch.undisturbed()
        for complaint in self.loop.complaints:
            self.watch.holds(False, "nobody's failure goes unseen", complaint)

    def _client(self, name: str) -> Client:
        chance, topic = Random(self.random.random()), lambda: self._topic
        return Client(name, KEY, self.watch, self.gentle, self.day, chance, self._choose, topic)

    def _written(self, key: SessionKey, segment: Segment) -> None:
        self.watch.written(segment)
        self._strike(segment.commit.partition("-")[0])

    def _changed(self, key: SessionKey, marks: Marks) -> None:
        session = self.store.of(key)
        if lease := session.lease:
            self.watch.leased(lease)
        if lease and session.head and session.head.turn and session.head.turn.status == "waiting":
            now = EPOCH_MS + int(self.loop.time() * 1000) + SKEW_MS
            self.watch.waits(session.control, lease.sweep_at is not None and lease.sweep_at <= now)
        late = self.weather.random.uniform(0.001, 0.05)
        self.loop.call_later(late, self.waiters.wake, key, marks, context=Context())

    def close(self) -> None:
        """Lets go of all that still runs, the dead too, so that nothing is left for the garbage collector to end."""
        self.watch.over = True
        self.loop.run(self._end())

    async def _end(self) -> None:
        for process in self.ever:
            process.network.closed = True
            self.loop.resume(process)
        own = asyncio.current_task()
        while rest := [task for task in self.loop.tasks if task is not own]:
            for task in rest:
                task.cancel()
            await asyncio.sleep(1)
