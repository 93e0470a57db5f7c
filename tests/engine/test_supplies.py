"""A turn's user is asked for what only he can give: once, for this turn alone, and nobody else ever sees it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from engine.rig import KEY, PATIENCE, Gate, Instance, Rig, eventually, nth, types, unbroken
from legato import Agent, ToolContext, tool
from legato.credentials import Shared, Token
from legato.errors import AlreadyDecided, CredentialsNotKept, NotFound, ToolFailed, TurnGone
from legato.journal import Cancel, SessionKey, TurnRecord
from legato.models.scripted import ScriptedModel
from legato.sweeper import Sweeper
from legato.tools import Tool
from legato.vault import Vault

SECRET = "correct-horse-battery-staple"
MAIL = '/say 1\n/tool mail {"to":"bob"}\n/say 1'
BOTH = '/parallel mail {"to":"bob"} mail {"to":"eve"}\n/say 1'
AGAIN = '/tool mail {"to":"bob"}\n/tool mail {"to":"eve"}\n/say 1'
ASKED = ["turn.started", "text.delta", "tool.call", "credential.required", "turn.suspended"]


@dataclass
class Post:
    """Sends letters for who shows what it takes; `sent` has to whom and with what."""

    sent: list[tuple[str, str]] = field(default_factory=list)
    stale: set[str] = field(default_factory=set)
    running: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    def tools(self) -> list[Tool]:
        @tool(credentials=("mail",))
        async def mail(to: str, *, turn: ToolContext) -> str:
            async with httpx.AsyncClient(transport=httpx.MockTransport(self.answer)) as http:
                answer = await http.post("https://post.example", content=to, auth=turn.credentials("mail"))
            return answer.text

        @tool(credentials=("mail",), approval="Send?")
        async def wire(*, turn: ToolContext) -> None:
            self.sent.append(("wire", await turn.credentials("mail")))

        @tool(credentials=("mail",), timeout=10)
        async def hold(*, turn: ToolContext) -> None:
            self.sent.append(("hold", await turn.credentials("mail")))
            self.running.set()
            await self.go.wait()

        @tool(effect="read", timeout=60)
        async def slow() -> None:
            self.running.set()
            await self.go.wait()

        @tool(effect="read", approval="Go?")
        async def ask() -> None:
            self.running.set()
            await self.go.wait()

        @tool(credentials=("mail",), effect="read")
        async def other(*, turn: ToolContext) -> str:
            return await turn.credentials("drive")

        return [mail, wire, hold, slow, ask, other]

    async def runs(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.running.wait()

    def answer(self, request: httpx.Request) -> httpx.Response:
        shown = request.headers["Authorization"].removeprefix("Bearer ")
        if shown in self.stale:
            return httpx.Response(401)
        self.sent.append((request.content.decode(), shown))
        return httpx.Response(200, text="sent")


@pytest.fixture
def post() -> Post:
    return Post()


def instance(rig: Rig, post: Post, **parts: Any) -> Instance:
    return rig.instance(Agent(model=ScriptedModel(), tools=post.tools()), **parts)


async def waiting(one: Instance) -> TurnRecord:
    """Once its owner has also looked again whether it may go on with it."""
    await one.engine.rest(PATIENCE)
    record = await one.record()
    assert record.status == "waiting"
    return record


async def asked(one: Instance, script: str = MAIL) -> None:
    """The turn `t1` up to where it waits."""
    await one.start(script)
    await waiting(one)


async def supply(one: Instance, value: str = SECRET, expires_in: float | None = None, **more: str) -> bool:
    """Whether that had been taken before."""
    name, turn = more.get("name", "mail"), more.get("turn", "t1")
    return (await one.gateway.supply(KEY, turn, name, value, expires_in)).again


async def stored(other: Instance) -> None:
    """Supplied through an instance that is lost before it goes on with the turn."""
    gate = Gate()
    other.journal.rule = nth(gate, 2, "commit")
    supplying = asyncio.create_task(supply(other))
    await gate.stood()
    await other.engine.close()
    supplying.cancel()
    await asyncio.wait({supplying})


async def swept(one: Instance) -> int:
    """How many turns ended by it."""
    return (await Sweeper(one.runtime, one.engine).sweep()).ended


async def completed(one: Instance) -> TurnRecord:
    record = await one.ended()
    assert record.status == "completed", record
    return record


async def required(one: Instance) -> list[tuple[str, str]]:
    snapshot = await one.gateway.snapshot(KEY, None)
    return [(each["name"], each["reason"]) for each in snapshot["active"]["credentials"]]


async def code(one: Instance, call: int = 0) -> str | None:
    error = (await one.record()).tools[call].error
    return error.code if error else None


async def kept(one: Instance) -> dict[str, str]:
    """What is stored of the turn's credentials."""
    texts = await one.journal.private(KEY, "t1", one.clock())
    return {name: text for name, text in texts.items() if name.startswith("credential.")}


async def test_the_turn_is_put_to_rest_with_what_it_asks_for(rig: Rig, post: Post) -> None:
    one = instance(rig, post)
    await asked(one)
    assert types(await one.stored()) == ASKED
    assert await required(one) == [("mail", "mail needs it")]
    standing = await one.journal.standing(KEY)
    assert standing.lease
    assert (standing.lease.expires_at, post.sent) == (0, [])


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_what_is_given_is_taken_up_before_the_tool_is_entered(rig: Rig, post: Post, where: str) -> None:
    one = instance(rig, post)
    await asked(one)
    other = one if where == "here" else instance(rig, post)
    assert not await supply(other)
    assert (await completed(other)).output == "w1 w2 "
    assert post.sent == [("bob", SECRET)]
    records = await other.stored()
    assert types(records)[5:8] == ["turn.resumed", "credential.supplied", "tool.result"]
    assert unbroken(records)


async def test_a_tool_is_not_entered_before_it_is_durable_that_it_was_given(rig: Rig, post: Post) -> None:
    one, other = instance(rig, post), instance(rig, post)
    await asked(one)
    gate = Gate()
    other.journal.rule = nth(gate, 1, "append")
    supplying = asyncio.create_task(supply(other))
    await gate.stood()
    assert post.sent == []
    gate.open()
    await supplying
    await completed(other)


async def test_calls_that_need_the_same_ask_once(rig: Rig, post: Post) -> None:
    one = instance(rig, post)
    await asked(one, BOTH)
    await supply(one)
    await completed(one)
    assert sorted(post.sent) == [("bob", SECRET), ("eve", SECRET)]
    kinds = types(await one.stored())
    assert (kinds.count("credential.required"), kinds.count("credential.supplied")) == (1, 1)


async def test_a_later_call_of_the_turn_is_given_what_an_earlier_one_asked_for(rig: Rig, post: Post) -> None:
    one = instance(rig, post)
    await asked(one, AGAIN)
    await supply(one)
    await completed(one)
    assert post.sent == [("bob", SECRET), ("eve", SECRET)]


async def test_the_next_turn_asks_anew(rig: Rig, post: Post) -> None:
    one = instance(rig, post)
    await asked(one)
    await supply(one)
    await completed(one)
    await one.start(MAIL, "t2")
    await eventually(lambda: not one.engine.live)
    assert (await one.record("t2")).status == "waiting"


async def test_an_approval_is_asked_for_first(rig: Rig, post: Post) -> None:
    one = instance(rig, post)
    await asked(one, "/tool wire {}\n/say 1")
    assert types(await one.stored())[-2:] == ["approval.requested", "turn.suspended"]
    await one.gateway.decide(KEY, "t1", "1-1-1", True, None)
    await one.shown("credential.required")
    await waiting(one)
    await supply(one)
    await completed(one)
    assert post.sent == [("wire", SECRET)]


async def test_arguments_that_no_call_takes_ask_for_nothing(rig: Rig, post: Post) -> None:
    one = instance(rig, post)
    await one.start('/tool mail {"to":5}\n/say 1')
    await completed(one)
    assert await code(one) == "bad_arguments"


async def test_what_the_process_has_is_asked_of_nobody(rig: Rig, post: Post) -> None:
    class Ours:
        async def fetch(self) -> Token:
            return Token("ours")

    one = instance(rig, post)
    one.runtime.credentials["mail"] = Shared("mail", Ours(), one.clock)  # type: ignore[index]
    await one.start(MAIL)
    await completed(one)
    assert post.sent == [("bob", "ours")]


async def test_what_a_tool_did_not_declare_it_is_not_given(rig: Rig, post: Post) -> None:
    one = instance(rig, post)
    await asked(one, "/tool other {}\n/say 1")
    await supply(one)
    await completed(one)
    assert await code(one) == "credential_unknown"


# Until it is taken up.


async def test_of_two_given_before_the_turn_goes_on_the_later_one_counts(rig: Rig, post: Post) -> None:
    one, other = instance(rig, post), instance(rig, post)
    await asked(one)
    gate = Gate()
    other.journal.rule = nth(gate, 2, "commit")  # the fence of who takes the turn over
    first = asyncio.create_task(supply(other, "the first"))
    await gate.stood()
    assert not await supply(one, "the-second")
    gate.open()
    await first
    await eventually(lambda: bool(post.sent))
    assert post.sent == [("bob", "the-second")]


async def test_the_same_again_is_found_and_another_is_refused_once_it_was_taken_up(rig: Rig, post: Post) -> None:
    one = instance(rig, post)
    await asked(one, '/tool mail {"to":"bob"}\n/tool hold {}')
    await supply(one)
    await post.runs()
    assert await supply(one)
    with pytest.raises(AlreadyDecided, match="no more"):
        await supply(one, "another")
    post.go.set()
    await completed(one)


async def test_of_twenty_at_once_on_two_instances_one_is_taken_up_and_the_tool_runs_once(rig: Rig, post: Post) -> None:
    instances = [instance(rig, post), instance(rig, post)]
    await asked(instances[0])
    given = (supply(instances[n % 2], f"value{n}") for n in range(20))
    outcomes = await asyncio.gather(*given, return_exceptions=True)
    for one in instances:
        await completed(one)
    refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert len(refused) < 20
    assert {type(outcome) for outcome in refused} <= {AlreadyDecided}
    assert len(post.sent) == 1
    assert types(await instances[0].stored()).count("credential.supplied") == 1


async def test_one_whose_turn_ends_while_it_is_looked_at_is_refused_as_too_late(rig: Rig, post: Post) -> None:
    """What is kept goes with the turn, while what was asked has been answered: not even that it was asked is left."""
    one, other = instance(rig, post), instance(rig, post)
    await asked(one, "/tool hold {}")
    await supply(one)
    await post.runs()
    gate = other.journal.hold("private")
    late = asyncio.create_task(supply(other, "late"))
    await gate.stood()
    post.go.set()
    await completed(one)
    gate.open()
    with pytest.raises(AlreadyDecided):
        await late


async def test_one_that_comes_too_late_to_be_taken_up_is_refused_and_not_kept(rig: Rig, post: Post) -> None:
    """It was asked for when that was looked at; by the time of the write the turn has ended."""
    one, other = instance(rig, post), instance(rig, post)
    await asked(one)
    gate = other.journal.hold("commit")
    late = asyncio.create_task(supply(other, "late"))
    await gate.stood()
    await supply(one)
    await completed(one)
    gate.open()
    with pytest.raises(AlreadyDecided):
        await late
    assert await kept(one) == {}


# Refused.


async def test_what_was_not_asked_for_is_not_found(rig: Rig, post: Post) -> None:
    one = instance(rig, post)
    await asked(one)
    with pytest.raises(NotFound):
        await supply(one, name="drive")
    with pytest.raises(TurnGone):
        await supply(one, turn="t9")
    with pytest.raises(NotFound):
        await one.gateway.supply(SessionKey("bob", "s1"), "t1", "mail", SECRET, None)
    assert await kept(one) == {}


async def test_a_turn_that_has_ended_or_is_being_cancelled_takes_nothing(rig: Rig, post: Post) -> None:
    one, other = instance(rig, post), instance(rig, post)
    await asked(one)
    await other.engine.cancel(KEY, "t1", "enough", "ann")
    with pytest.raises(AlreadyDecided, match="cancelled"):
        await supply(one)
    await one.engine.take_over(KEY)
    assert (await one.ended()).status == "interrupted"
    with pytest.raises(AlreadyDecided, match="ended"):
        await supply(one)
    assert post.sent == []


async def test_without_a_key_nothing_is_asked_for_and_the_call_says_so(rig: Rig, post: Post) -> None:
    one = instance(rig, post, vault=None)
    await one.start(MAIL)
    await completed(one)
    assert await code(one) == "credential_unavailable"
    assert "credential.required" not in types(await one.stored())


async def test_an_instance_without_a_key_takes_nothing_and_asks_no_more(rig: Rig, post: Post) -> None:
    one, keyless = instance(rig, post, approval=60), instance(rig, post, vault=None)
    await asked(one)
    with pytest.raises(CredentialsNotKept, match="LEGATO_CREDENTIAL_KEYS"):
        await supply(keyless)
    keyless.clock.advance(61)
    await keyless.engine.take_over(KEY)
    await completed(keyless)
    assert await code(keyless) == "credential_unavailable"
    assert types(await keyless.stored())[5:7] == ["turn.resumed", "credential.withdrawn"]


# In time.


async def test_what_nobody_gives_in_time_ends_the_call_by_a_sweep(rig: Rig, post: Post) -> None:
    one, other = instance(rig, post, approval=60), instance(rig, post, approval=60)
    await asked(one, BOTH)
    other.clock.advance(61)
    with pytest.raises(AlreadyDecided):
        await supply(other)
    assert await swept(other) == 1
    assert [await code(other, call) for call in (0, 1)] == ["credential_expired"] * 2
    assert types(await other.stored()).count("credential.withdrawn") == 1
    assert post.sent == []


async def test_what_has_expired_is_asked_for_again(rig: Rig, post: Post) -> None:
    one = instance(rig, post)
    await asked(one, '/tool mail {"to":"bob"}\n/tool wire {}\n/say 1')
    await supply(one, expires_in=60)
    await one.shown("approval.requested")
    await waiting(one)
    one.clock.advance(61)
    await one.gateway.decide(KEY, "t1", "2-1-1", True, None)
    await one.shown("credential.required")
    await waiting(one)
    await supply(one, "fresh")
    await completed(one)
    assert post.sent == [("bob", SECRET), ("wire", "fresh")]


async def test_what_has_expired_before_it_is_taken_up_is_asked_for_again(rig: Rig, post: Post) -> None:
    one = instance(rig, post)
    await asked(one)
    await supply(one, expires_in=0.001)
    await eventually(lambda: not one.engine.live)
    assert await required(one) == [("mail", "mail needs it")]
    await supply(one)
    await completed(one)
    assert post.sent == [("bob", SECRET)]


async def test_a_turn_waits_for_longer_than_its_events_are_kept(rig: Rig, post: Post) -> None:
    one, other = instance(rig, post, approval=9 * 86400), instance(rig, post, approval=9 * 86400)
    await asked(one)
    other.clock.advance(5 * 86400)
    await supply(other)
    assert (await completed(other)).output == "w1 w2 "


# Not taken by whom it is shown to.


async def test_what_was_not_taken_ends_its_call_and_is_asked_for_again_by_the_next(rig: Rig, post: Post) -> None:
    post.stale.add("stale")
    one = instance(rig, post)
    await asked(one, AGAIN)
    await supply(one, "stale")
    await one.shown("credential.required")
    await waiting(one)
    assert await required(one) == [("mail", "mail needs it")]
    await supply(one)
    await completed(one)
    assert await code(one) == "credential_rejected"
    assert post.sent == [("eve", SECRET)]


async def test_of_two_that_a_call_needs_only_the_one_that_was_not_taken_is_asked_for_again(rig: Rig) -> None:
    @tool(credentials=("drive", "mail"))
    async def both(*, turn: ToolContext) -> None:
        if await turn.credentials("mail") == "stale":
            raise ToolFailed("credential_rejected", "no")
        await turn.credentials("drive")

    one = rig.instance(Agent(model=ScriptedModel(), tools=[both]))
    await asked(one, "/tool both {}\n/tool both {}\n/say 1")
    for name, value in (("drive", SECRET), ("mail", "stale")):
        assert await required(one) == [(name, "both needs it")]
        await supply(one, value, name=name)
        await waiting(one)
    assert await required(one) == [("mail", "both needs it")]
    await supply(one)
    await completed(one)


async def test_what_expires_while_a_call_runs_is_given_it_no_more(rig: Rig, post: Post) -> None:
    @tool(credentials=("mail",), timeout=60)
    async def twice(*, turn: ToolContext) -> None:
        await turn.credentials("mail")
        post.running.set()
        await post.go.wait()
        await turn.credentials("mail")

    one = rig.instance(Agent(model=ScriptedModel(), tools=[twice]))
    await asked(one, "/tool twice {}\n/say 1")
    await supply(one, expires_in=60)
    await post.running.wait()
    one.clock.advance(61)
    post.go.set()
    await completed(one)
    assert await code(one) == "credential_rejected"


# Keys.


async def test_what_was_sealed_with_an_old_key_is_read_and_taken_up(rig: Rig, post: Post) -> None:
    one, rotated = instance(rig, post), instance(rig, post, vault=Vault([b"n" * 32, b"k" * 32]))
    await asked(one)
    await stored(instance(rig, post))
    await rotated.engine.take_over(KEY)
    await completed(rotated)
    assert post.sent == [("bob", SECRET)]


async def test_what_cannot_be_read_any_more_is_asked_for_again(rig: Rig, post: Post) -> None:
    one, new = instance(rig, post), instance(rig, post, vault=Vault([b"n" * 32]))
    await asked(one)
    await stored(instance(rig, post))
    await new.engine.take_over(KEY)
    await waiting(new)
    assert await required(new) == [("mail", "mail needs it")]
    await supply(new, "fresh")
    await completed(new)
    assert post.sent == [("bob", "fresh")]


# Gone with the turn.


@pytest.mark.parametrize("end", ["completed", "cancelled", "failed", "deleted", "expired"])
async def test_with_the_turns_end_what_was_given_is_gone(rig: Rig, post: Post, end: str) -> None:
    script = '/tool mail {"to":"bob"}\n/tool wire {}\n' + ("/fail told to" if end == "failed" else "/say 1")
    one = instance(rig, post)
    await asked(one, script)
    await supply(one)
    await one.shown("approval.requested")
    await waiting(one)
    assert list(await kept(one)) == ["credential.mail"]
    match end:
        case "cancelled":
            await one.gateway.cancel(KEY, "t1", "enough", "ann")
        case "deleted":
            await one.gateway.delete(KEY)
        case _:
            if end == "expired":
                one.clock.advance(86401)
                await one.engine.take_over(KEY)
            else:
                await one.gateway.decide(KEY, "t1", "2-1-1", True, None)
    if end != "deleted":
        await one.ended()
    assert await kept(one) == {}


async def test_what_was_given_and_not_taken_up_is_gone_with_the_turn_too(rig: Rig, post: Post) -> None:
    one = instance(rig, post)
    await asked(one)
    await stored(instance(rig, post))
    assert list(await kept(one)) == ["credential.mail"]
    await one.engine.cancel(KEY, "t1", "enough", "ann")
    await one.engine.take_over(KEY)
    assert (await one.ended()).status == "interrupted"
    assert await kept(one) == {}


async def test_what_its_owner_has_not_heard_of_is_gone_with_the_turn_too(rig: Rig, post: Post) -> None:
    """It was given while the turn streamed, since a person had answered another question of it."""
    one, other = instance(rig, post), instance(rig, post)
    await asked(one, '/parallel mail {"to":"bob"} ask {}')
    await one.gateway.decide(KEY, "t1", "1-2-1", True, None)
    await post.runs()
    one.journal.refuse("control")
    await supply(other)
    assert list(await kept(one)) == ["credential.mail"]
    one.engine.cancel_here(KEY, "t1", Cancel("enough", "ann", 0))
    assert (await one.ended()).status == "interrupted"
    assert await kept(one) == {}


async def test_deleting_a_session_takes_what_was_given_with_it_in_one_commit(rig: Rig, post: Post) -> None:
    """Whatever becomes of the rest of the deletion."""
    one, other = instance(rig, post), instance(rig, post)
    await asked(one, '/tool mail {"to":"bob"}\n/tool hold {}')
    await supply(one)
    await post.runs()
    other.journal.rule = nth(Gate(), 1, "purge")
    deleting = asyncio.create_task(other.gateway.delete(KEY))
    await eventually(lambda: "purge" in other.journal.calls)
    assert await kept(one) == {}
    post.go.set()
    deleting.cancel()


# Nobody else.


async def test_the_value_is_nowhere_in_what_is_stored_or_logged(
    rig: Rig, post: Post, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    post.stale.add(SECRET)
    one = instance(rig, post)
    await asked(one, AGAIN)
    await supply(one)
    await one.shown("credential.required")
    await waiting(one)
    files = b"".join(path.read_bytes() for path in rig.path.parent.iterdir())
    assert b"credential.mail" in files
    assert SECRET.encode() not in files
    assert SECRET not in caplog.text


async def test_an_owner_lost_before_its_user_was_asked_leaves_no_doubt(rig: Rig, post: Post) -> None:
    """Nothing can have been sent without what nobody has given."""
    one, other = instance(rig, post), instance(rig, post)
    await one.start('/parallel mail {"to":"bob"} slow {}')
    await post.runs()
    one.journal.refuse()
    other.clock.advance(3600)
    await other.engine.take_over(KEY)
    post.go.set()
    await waiting(other)
    assert types(await other.stored())[-2:] == ["credential.required", "turn.suspended"]


async def test_what_a_sweep_finds_given_is_taken_up(rig: Rig, post: Post) -> None:
    """Whoever took it was lost before it went on with the turn."""
    one = instance(rig, post)
    await asked(one)
    await stored(instance(rig, post))
    assert await swept(one) == 1
    assert post.sent == [("bob", SECRET)]


async def test_a_call_that_was_running_when_its_owner_was_lost_is_in_doubt_as_ever(rig: Rig, post: Post) -> None:
    one, other = instance(rig, post), instance(rig, post)
    await asked(one, "/tool hold {}")
    await supply(one)
    await post.runs()
    one.journal.refuse()
    other.clock.advance(3600)
    await other.engine.take_over(KEY)
    await waiting(other)
    assert types(await other.stored())[-2:] == ["approval.requested", "turn.suspended"]
    assert len(post.sent) == 1
    post.go.set()


@pytest.mark.parametrize("came", [True, False])
async def test_what_a_call_in_doubt_had_asked_for_keeps_nobody_from_being_asked_about_it(
    rig: Rig, post: Post, came: bool
) -> None:
    """It was given again, or was not in time, and its owner lost before that was taken up."""
    one, lost, other = instance(rig, post), instance(rig, post), instance(rig, post)
    await asked(one, "/tool hold {}")
    await supply(one, expires_in=0.001)
    await eventually(lambda: not one.engine.live)
    gate = lost.journal.hold("append" if came else "control")
    lost.clock.advance(0 if came else 86401)
    going_on = asyncio.create_task(supply(lost) if came else swept(lost))
    await gate.stood()
    other.clock.advance(3600 if came else 86401 + 3600)
    await other.engine.take_over(KEY)
    await waiting(other)
    told = "credential.supplied" if came else "credential.withdrawn"
    assert types(await other.stored())[-3:] == [told, "approval.requested", "turn.suspended"]
    assert post.sent == []
    going_on.cancel()
