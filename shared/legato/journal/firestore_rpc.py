"""Firestore's RPCs: one call is one attempt, within `timeout` seconds, and its failure is one of our errors.

The calls go to Google's channel without the client library around it: that would retry by itself, and costs more CPU.
Nothing is opened before the first call, since a channel belongs to the loop it is opened in.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Final
from urllib.parse import quote

import google.auth
import google.auth.exceptions
import grpc
import grpc.aio
from google.cloud.firestore_v1.services.firestore.transports.grpc_asyncio import FirestoreGrpcAsyncIOTransport

from legato.errors import JournalRejected, JournalUnavailable, LegatoError
from legato.journal import firestore_wire as wire
from legato.journal.firestore_wire import Message
from legato.journal.grouping import Written

HOST: Final = "firestore.googleapis.com"
OPTIONS: Final = (
    ("grpc.enable_retries", 0),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
)
UNARY: Final = {
    "Commit": (wire.CommitRequest, wire.CommitResponse),
    "BatchWrite": (wire.BatchWriteRequest, wire.BatchWriteResponse),
}
STREAMS: Final = {
    "BatchGetDocuments": (wire.BatchGetRequest, wire.BatchGetResponse),
    "RunQuery": (wire.RunQueryRequest, wire.RunQueryResponse),
}

_BY_NUMBER: Final = {code.value[0]: code for code in grpc.StatusCode}
_OUTCOME_UNKNOWN: Final = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNAUTHENTICATED,
    }
)
_PRECONDITION: Final = frozenset(
    {grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND}
)


class PreconditionFailed(Exception):
    """What stands there is not what the write expects: read it back to see whose it is."""


def failure(code: grpc.StatusCode, details: str | None) -> LegatoError:
    """A status as our error. RESOURCE_EXHAUSTED is a quota, which passes, or a message's size, which does not.

    UNAUTHENTICATED is a token that could not be had just now; who may not write at all is told PERMISSION_DENIED.
    """
    message = f"Firestore: {code.name}: {details or 'no details'}"
    quota = code is grpc.StatusCode.RESOURCE_EXHAUSTED and not _names_a_size(details or "")
    return JournalUnavailable(message) if quota or code in _OUTCOME_UNKNOWN else JournalRejected(message)


def _names_a_size(details: str) -> bool:
    return any(words in details.lower() for words in ("larger than", "maximum size", "too large", "too big"))


def write_failure(code: grpc.StatusCode, details: str | None) -> Exception:
    """A write's status as an error: like `failure`, but a precondition is told apart."""
    return PreconditionFailed(f"{code.name}: {details}") if code in _PRECONDITION else failure(code, details)


class FirestoreRpc:
    """The few RPCs of one database. `emulator` is its host:port; None is Google's, with the default credentials."""

    def __init__(self, project: str, database: str, emulator: str | None, timeout: float) -> None:
        self.database = f"projects/{project}/databases/{database}"
        self._emulator, self._timeout = emulator, timeout
        self._metadata = (
            ("google-cloud-resource-prefix", self.database),
            ("x-goog-request-params", f"project_id={quote(project)}&database_id={quote(database)}"),
            *((("authorization", "Bearer owner"),) if emulator else ()),
        )
        self._connecting = asyncio.Lock()
        self._channel: grpc.aio.Channel | None = None
        self._methods: dict[str, Any] = {}
        self._closed = False

    def name(self, *path: str) -> str:
        return "/".join((self.database, "documents", *filter(None, path)))

    async def commit(self, writes: Iterable[Message]) -> list[int]:
        """Writes all or nothing; gives the new versions. Raises PreconditionFailed."""
        request = wire.CommitRequest(database=self.database, writes=writes)
        try:
            answer = await self._call("Commit", request)
        except grpc.aio.AioRpcError as failed:
            raise write_failure(failed.code(), failed.details()) from None
        return [wire.version(result.update_time) for result in answer.write_results]

    async def batch_write(self, writes: Iterable[Message]) -> Sequence[Written]:
        """Writes each by itself; gives each one's new version, or the exception that tells why not."""
        request = wire.BatchWriteRequest(database=self.database, writes=writes)
        try:
            answer = await self._call("BatchWrite", request)
        except grpc.aio.AioRpcError as failed:
            raise failure(failed.code(), failed.details()) from None
        return [
            write_failure(_BY_NUMBER[status.code], status.message) if status.code else wire.version(result.update_time)
            for status, result in zip(answer.status, answer.write_results, strict=True)
        ]

    async def get(self, *names: str) -> list[Message | None]:
        """The documents of these names, in this order; None where there is none."""
        request = wire.BatchGetRequest(database=self.database, documents=names)
        answers = self._stream("BatchGetDocuments", request)
        found = {answer.found.name: answer.found async for answer in answers if answer.HasField("found")}
        return [found.get(name) for name in names]

    async def query(self, request: Message) -> list[Message]:
        return [document async for document in self.documents(request)]

    async def documents(self, request: Message) -> AsyncGenerator[Message, None]:
        """A query's documents as they come. Closing it ends the call: what was not asked for yet is not sent."""
        async with aclosing(self._stream("RunQuery", request)) as answers:
            async for answer in answers:
                if answer.HasField("document"):
                    yield answer.document

    async def listen(self, requests: AsyncIterator[Message]) -> AsyncGenerator[Message, None]:
        """What a Listen stream tells, on a connection of its own, until it is closed. It has no time limit.

        Its own, since a channel's streams share one connection, and many of them stop every other call of the process.
        """
        if self._closed:
            raise JournalUnavailable("Firestore: the journal is closed")
        channel = await self._open_channel(("grpc.use_local_subchannel_pool", 1))
        try:
            listen = self._method(channel.stream_stream, "Listen", wire.ListenRequest, wire.ListenResponse)
            call = listen(requests, metadata=self._metadata)
            async with aclosing(_told(call)) as messages:
                async for message in messages:
                    yield message
        finally:
            await channel.close()

    async def close(self) -> None:
        self._closed = True
        if self._channel:
            await self._channel.close()

    async def _stream(self, method: str, request: Message) -> AsyncGenerator[Message, None]:
        try:
            async with aclosing(_told(await self._started(method, request))) as answers:
                async for answer in answers:
                    yield answer
        except asyncio.CancelledError:
            self._raise_if_closed()
            raise

    async def _call(self, method: str, request: Message) -> Message:
        try:
            return _read(await (await self._started(method, request)))
        except asyncio.CancelledError:
            self._raise_if_closed()
            raise

    def _raise_if_closed(self) -> None:
        """A closing channel cancels its calls; that must not look as if somebody cancelled the task that waits."""
        task = asyncio.current_task()
        if self._closed and task and not task.cancelling():
            raise JournalUnavailable("Firestore: the journal was closed before the answer came") from None

    async def _started(self, method: str, request: Message) -> Any:
        if self._closed:
            raise JournalUnavailable("Firestore: the journal is closed")
        if not self._methods:
            await self._open()
        return self._methods[method](request, metadata=self._metadata, timeout=self._timeout)

    async def _open(self) -> None:
        async with self._connecting:
            if not self._methods:
                self._channel = await self._open_channel()
                self._methods = {
                    **{name: self._method(self._channel.unary_unary, name, *of) for name, of in UNARY.items()},
                    **{name: self._method(self._channel.unary_stream, name, *of) for name, of in STREAMS.items()},
                }

    async def _open_channel(self, *more: tuple[str, int]) -> grpc.aio.Channel:
        options = [*OPTIONS, *more]
        if self._emulator:
            return grpc.aio.insecure_channel(self._emulator, options=[*options, ("grpc.enable_http_proxy", 0)])
        transport = FirestoreGrpcAsyncIOTransport
        try:  # looking for credentials reads files and may ask the metadata server
            credentials, _ = await asyncio.to_thread(google.auth.default, scopes=transport.AUTH_SCOPES)
        except google.auth.exceptions.GoogleAuthError as wrong:
            raise JournalRejected(f"Firestore: {wrong}") from None
        return transport.create_channel(HOST, credentials=credentials, options=options)

    @staticmethod
    def _method(kind: Any, name: str, request: Message, response: Message) -> Any:
        return kind(
            f"/google.firestore.v1.Firestore/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )


def _read(message: Message | None) -> Message:
    """gRPC gives None for bytes that are no message."""
    if message is None:
        raise JournalUnavailable("Firestore: an answer came that cannot be read")
    return message


async def _told(call: Any) -> AsyncGenerator[Message, None]:
    """The messages of a call, which ends with this."""
    try:
        async for message in call:
            yield _read(message)
    except grpc.aio.AioRpcError as failed:
        raise failure(failed.code(), failed.details()) from None
    finally:
        call.cancel()
