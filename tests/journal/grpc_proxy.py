"""A gRPC hop in front of Firestore's emulator that refuses calls, loses their answers, holds them or swallows them.

    async with GrpcProxy(emulator) as proxy:
        proxy.lose(StatusCode.UNAVAILABLE, "Commit")   # the next Commit is applied, its answer is not heard
        journal = FirestoreJournal(project, "(default)", emulator=proxy.host)

Servers of other processes are sent through it by FIRESTORE_EMULATOR_HOST. Faults that wait for the same call are used
in the order they were asked for, one a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import grpc
import grpc.aio

OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
PASSED_ON = ("authorization", "google-cloud-resource-prefix", "x-goog-request-params")


@dataclass(eq=False)
class Fault:
    """What befalls one call. `method` as in "Commit", or None for any; the first `skip` such calls are let pass."""

    method: str | None
    skip: int = 0
    code: grpc.StatusCode | None = None
    details: str = "injected"
    forward: bool = True
    answer: bytes | None = None
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    answered: asyncio.Event = field(default_factory=asyncio.Event)

    def release(self) -> None:
        """Lets a held call go on."""
        self.released.set()

    def strikes(self, method: str) -> bool:
        if self.arrived.is_set() or self.method not in (None, method):
            return False
        self.skip -= 1
        return self.skip < 0


class GrpcProxy(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Listens at `host`, a port of 127.0.0.1, and passes every RPC on to `upstream`. `calls` names all it has seen."""

    def __init__(self, upstream: str) -> None:
        self.calls: list[str] = []
        self.host = ""
        self._faults: list[Fault] = []
        self._open: dict[Any, str] = {}
        self._mute: set[str] = set()
        self._late: set[asyncio.Task[list[bytes]]] = set()
        self._upstream = upstream

    def refuse(
        self, code: grpc.StatusCode, method: str | None = None, *, skip: int = 0, details: str = "injected"
    ) -> Fault:
        """The call is answered with `code` and never reaches the store."""
        return self._add(Fault(method, skip, code, details, forward=False, released=_set()))

    def lose(self, code: grpc.StatusCode, method: str | None = None, *, skip: int = 0) -> Fault:
        """The store does what it is asked, but the caller hears `code`."""
        return self._add(Fault(method, skip, code, released=_set()))

    def garble(self, method: str | None) -> Fault:
        """The store does what it is asked, but the caller hears what is no message."""
        return self._add(Fault(method, answer=b"\xff\xff", released=_set()))

    def hold(self, method: str | None = None, *, skip: int = 0) -> Fault:
        """The call waits for `release()` before it goes on to the store, also when its caller has given up by then.

        `arrived` tells that it is here, `answered` that the store has done with it. For calls of one request.
        """
        return self._add(Fault(method, skip))

    def swallow(self, method: str | None = None, *, skip: int = 0) -> Fault:
        """The call never reaches the store and is never answered."""
        return self._add(Fault(method, skip, forward=False))

    def mute(self, method: str) -> None:
        """Not an answer of this method passes from now on, also of calls that run; nothing tells the caller."""
        self._mute.add(method)

    def cut(self, method: str) -> int:
        """Breaks the running calls of this method; how many there were."""
        calls = [call for call, name in self._open.items() if name == method]
        return sum(call.cancel() for call in calls)

    def running(self, method: str) -> int:
        return list(self._open.values()).count(method)

    def clear(self) -> None:
        """From now on all calls pass; held ones are let go. A call that has been muted stays so."""
        self._mute.clear()
        for fault in self._faults:
            fault.release()
        self._faults.clear()

    async def __aenter__(self) -> Self:
        self._channel = grpc.aio.insecure_channel(self._upstream, options=OPTIONS)
        self._server = grpc.aio.server(options=OPTIONS)
        self._server.add_generic_rpc_handlers((self,))
        self.host = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.clear()
        await self._server.stop(grace=0)
        await asyncio.gather(*self._late, return_exceptions=True)
        await self._channel.close()

    def service(self, handler_call_details: Any) -> Any:
        path = handler_call_details.method
        method = path.rsplit("/", 1)[1]
        self.calls.append(method)
        fault = next((fault for fault in self._faults if fault.strikes(method)), None)
        if fault:
            fault.arrived.set()
        return grpc.stream_stream_rpc_method_handler(self._behaviour(path, fault))

    def _add(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    def _behaviour(self, path: str, fault: Fault | None) -> Callable[[AsyncIterator[bytes], Any], AsyncIterator[bytes]]:
        if fault is None:
            return partial(self._forward, path)
        held = fault.forward and fault.code is None and fault.answer is None
        return partial(self._held if held else self._failed, path, fault)

    async def _held(
        self, path: str, fault: Fault, requests: AsyncIterator[bytes], context: Any
    ) -> AsyncIterator[bytes]:
        call = self._upstream_call(path, context)
        request = await anext(requests)

        async def late() -> list[bytes]:
            await fault.released.wait()
            try:
                return [response async for response in call(_once(request))]
            finally:
                fault.answered.set()

        task = asyncio.create_task(late())
        self._late.add(task)
        for response in await asyncio.shield(task):
            yield response

    async def _failed(
        self, path: str, fault: Fault, requests: AsyncIterator[bytes], context: Any
    ) -> AsyncIterator[bytes]:
        await fault.released.wait()
        if fault.forward:
            async for _ in self._forward(path, requests, context):
                if fault.answer is not None:
                    yield fault.answer
                    return
        await context.abort(fault.code or grpc.StatusCode.UNAVAILABLE, fault.details)

    async def _forward(self, path: str, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        method, mute = path.rsplit("/", 1)[1], False
        call = self._upstream_call(path, context)(requests)
        self._open[call] = method
        try:
            async for response in call:
                mute = mute or method in self._mute
                if not mute:
                    yield response
        except grpc.aio.AioRpcError as failed:
            await context.abort(failed.code(), failed.details())
        except asyncio.CancelledError:
            if not call.cancelled():
                raise
            await context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
        finally:
            del self._open[call]
            call.cancel()

    def _upstream_call(self, path: str, context: Any) -> Callable[[AsyncIterator[bytes]], Any]:
        metadata = [pair for pair in context.invocation_metadata() if pair[0] in PASSED_ON]
        return partial(self._channel.stream_stream(path), metadata=metadata)


async def _once(request: bytes) -> AsyncIterator[bytes]:
    yield request


def _set() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event
