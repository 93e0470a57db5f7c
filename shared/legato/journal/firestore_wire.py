"""Documents as Firestore's own protobuf messages: raw, since the wrapped ones cost more than the write itself.

`google.cloud.firestore_v1.types` wraps every message; `.pb()` is the class below. A version is the document's
`update_time` in microseconds, which is all the precision Firestore has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from google.cloud.firestore_v1.types import firestore, query, write

from legato.journal import Version
from legato.journal.firestore_docs import Fields

Message = Any
"""A raw protobuf message."""

CommitRequest: Final = firestore.CommitRequest.pb()
CommitResponse: Final = firestore.CommitResponse.pb()
BatchWriteRequest: Final = firestore.BatchWriteRequest.pb()
BatchWriteResponse: Final = firestore.BatchWriteResponse.pb()
BatchGetRequest: Final = firestore.BatchGetDocumentsRequest.pb()
BatchGetResponse: Final = firestore.BatchGetDocumentsResponse.pb()
RunQueryRequest: Final = firestore.RunQueryRequest.pb()
RunQueryResponse: Final = firestore.RunQueryResponse.pb()
ListenRequest: Final = firestore.ListenRequest.pb()
ListenResponse: Final = firestore.ListenResponse.pb()
Write: Final = write.Write.pb()

_Direction: Final = query.StructuredQuery.Direction
_Operator: Final = query.StructuredQuery.FieldFilter.Operator
_All: Final = query.StructuredQuery.CompositeFilter.Operator.AND
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def encode(fields: Mapping[str, Any], into: Message) -> None:
    """Sets `fields` in a message's map of values. Raises UnicodeEncodeError for a lone surrogate."""
    for name, value in fields.items():
        _set(into[name], value)


def _set(slot: Message, value: Any) -> None:  # noqa: C901 - one branch for each of Firestore's types
    if isinstance(value, str):
        slot.string_value = value
    elif isinstance(value, bool):
        slot.boolean_value = value
    elif isinstance(value, int):
        slot.integer_value = value
    elif isinstance(value, datetime):
        _set_time(slot.timestamp_value, value)
    elif value is None:
        slot.null_value = 0
    elif isinstance(value, float):
        slot.double_value = value
    elif isinstance(value, Mapping):
        slot.map_value.SetInParent()
        encode(value, slot.map_value.fields)
    elif isinstance(value, list | tuple):
        slot.array_value.SetInParent()
        for item in value:
            _set(slot.array_value.values.add(), item)
    else:
        raise ValueError(f"Firestore has no type for {type(value).__name__}")


def _set_time(slot: Message, at: datetime) -> None:
    since = at - _EPOCH
    slot.seconds, slot.nanos = since.days * 86400 + since.seconds, since.microseconds * 1000
    slot.SetInParent()


def decode(fields: Message) -> Fields:
    return {name: _value(value) for name, value in fields.items()}


def _value(value: Message) -> Any:
    kind = value.WhichOneof("value_type")
    if kind == "map_value":
        return decode(value.map_value.fields)
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    if kind == "timestamp_value":
        at = value.timestamp_value
        return _EPOCH + timedelta(seconds=at.seconds, microseconds=at.nanos // 1000)
    return None if kind == "null_value" else getattr(value, kind)


def version(update_time: Message) -> int:
    return int(update_time.seconds) * 1_000_000 + int(update_time.nanos) // 1000


def put(name: str, fields: Fields, *, stands: bool = False) -> Message:
    """A write of the whole document, whatever stands there; `stands`: where anything does."""
    message = Write()
    message.update.name = name
    encode(fields, message.update.fields)
    if stands:
        message.current_document.exists = True
    return message


def replace(name: str, fields: Fields, stored: Version) -> Message:
    """A write of the whole document where its version is `stored`; None: where there is no such document."""
    message = put(name, fields)
    if stored is None:
        message.current_document.exists = False
    else:
        _require(message, stored)
    return message


def merge(name: str, fields: Fields, stored: Version, without: Iterable[str] = ()) -> Message:
    """Like `replace`, but the document's other fields stay as they are, except those of `without`, which go."""
    message = replace(name, fields, stored)
    message.update_mask.field_paths.extend(dict.fromkeys((*fields, *without)))
    return message


def delete(name: str, stored: Version = None) -> Message:
    """Deletes the document where its version is `stored`; None: whatever stands there."""
    message = Write(delete=name)
    if stored is not None:
        _require(message, stored)
    return message


def _require(message: Message, stored: Version) -> None:
    at = message.current_document.update_time
    at.seconds, microseconds = divmod(stored, 1_000_000)
    at.nanos = microseconds * 1000


def holds(stored: Message, write: Message) -> bool:
    """The stored document has exactly what `write` writes."""
    have, want = decode(stored.fields), decode(write.update.fields)
    mask = set(write.update_mask.field_paths)
    return want == {name: value for name, value in have.items() if not mask or name in mask}


def select(
    parent: str,
    collection: str,
    order: str,
    limit: int,
    *,
    descending: bool = False,
    at_least: int | None = None,
    below: int | None = None,
    only: Iterable[str] = (),
) -> Message:
    """A query over one collection that the automatic index of the one field `order` serves."""
    request = RunQueryRequest(parent=parent)
    structured = request.structured_query
    structured.from_.add(collection_id=collection)
    for name in only:
        structured.select.fields.add(field_path=name)
    _where(structured, order, _Operator.GREATER_THAN_OR_EQUAL, at_least)
    _where(structured, order, _Operator.LESS_THAN, below)
    for path in (order, "__name__"):
        ordered = structured.order_by.add(direction=_Direction.DESCENDING if descending else _Direction.ASCENDING)
        ordered.field.field_path = path
    structured.limit.value = limit
    return request


def _where(structured: Message, path: str, operator: int, bound: int | None) -> None:
    if bound is not None:
        _compare(structured.where, path, operator).integer_value = bound


def _compare(where: Message, path: str, operator: int) -> Message:
    """Makes a filter compare the field `path` with the value that it gives."""
    where.field_filter.field.field_path, where.field_filter.op = path, operator
    return where.field_filter.value


def between(parent: str, collection: str, first: str, end: str) -> Message:
    """A query for the documents whose names are `first` or after and before `end`; it needs no index."""
    request = RunQueryRequest(parent=parent)
    structured = request.structured_query
    structured.from_.add(collection_id=collection)
    structured.where.composite_filter.op = _All
    filters = structured.where.composite_filter.filters
    _compare(filters.add(), "__name__", _Operator.GREATER_THAN_OR_EQUAL).reference_value = first
    _compare(filters.add(), "__name__", _Operator.LESS_THAN).reference_value = end
    return request


def due(parent: str, shard: int, now: int, limit: int, only: Iterable[str]) -> Message:
    """A query for the leases of all sessions of one shard whose `sweep_at` is `now` or before, oldest first."""
    request = select(parent, "lease", "sweep_at", limit, only=only)
    structured = request.structured_query
    structured.from_[0].all_descendants = True
    structured.where.composite_filter.op = _All
    filters = structured.where.composite_filter.filters
    _compare(filters.add(), "sweep_shard", _Operator.EQUAL).integer_value = shard
    _compare(filters.add(), "sweep_at", _Operator.LESS_THAN_OR_EQUAL).integer_value = now
    return request


def descendants(parent: str, limit: int, only: Iterable[str]) -> Message:
    """A query for whatever there is below a document."""
    request = RunQueryRequest(parent=parent)
    structured = request.structured_query
    structured.from_.add(all_descendants=True)
    for name in only:
        structured.select.fields.add(field_path=name)
    structured.order_by.add(direction=_Direction.ASCENDING).field.field_path = "__name__"
    structured.limit.value = limit
    return request


def start_after(request: Message, value: int, name: str) -> None:
    """Makes a query of `select` begin after the document `name`, in which the field of its order is `value`."""
    values = request.structured_query.start_at.values
    values.add(integer_value=value)
    values.add(reference_value=name)


def continue_after(request: Message, last: Message) -> None:
    """Makes an ordered query go on after the document `last`."""
    structured = request.structured_query
    structured.start_at.Clear()
    for ordered in structured.order_by:
        path, value = ordered.field.field_path, structured.start_at.values.add()
        if path == "__name__":
            value.reference_value = last.name
        else:
            value.CopyFrom(last.fields[path])
