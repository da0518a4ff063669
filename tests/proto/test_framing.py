"""Messages with rows: built and read in place, identical to protobuf's own encoding."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from replay_proto.framing import (
    ROWS_FIELD,
    column_views,
    flat_rows,
    joined_message,
    message_with_rows,
    split_message,
    split_rows,
)
from replay_proto.schema import DTYPES, Column, Schema
from replay_proto.v1 import replay_pb2

from tests.support.wire import bytes_field, tag, varint

WITH_ROWS = [
    message
    for message in replay_pb2.DESCRIPTOR.message_types_by_name.values()
    if "rows" in message.fields_by_name
    and message.fields_by_name["rows"].type == message.fields_by_name["rows"].TYPE_BYTES
]
HEADS = st.builds(
    replay_pb2.InsertRequest,
    table=st.text(max_size=20),
    table_uid=st.binary(max_size=16),
    writer_id=st.binary(max_size=16),
    insertion=st.builds(
        replay_pb2.Insertion,
        row_count=st.integers(-(2**63), 2**63 - 1),
        priorities=st.binary(max_size=300),
        sequence=st.integers(-(2**63), 2**63 - 1),
        runs=st.builds(replay_pb2.Runs, row_counts=st.binary(max_size=60), streams=st.binary(max_size=60)),
    ),
)
ROWS = st.one_of(st.binary(max_size=300), st.sampled_from([0, 1, 127, 128, 129, 16383, 16384, 2**21]).map(bytes))
UNKNOWN = st.one_of(
    st.builds(
        lambda number, value: tag(number, 0) + varint(value), st.integers(16, 2**29 - 1), st.integers(0, 2**64 - 1)
    ),
    st.builds(lambda number: tag(number, 1) + bytes(8), st.integers(16, 2**29 - 1)),
    st.builds(lambda number: tag(number, 5) + bytes(4), st.integers(16, 2**29 - 1)),
    st.builds(bytes_field, st.integers(16, 2**29 - 1), st.binary(max_size=20)),
)


def with_rows(head: replay_pb2.InsertRequest, rows: bytes) -> replay_pb2.InsertRequest:
    """The whole message, encoded by protobuf alone."""
    whole = replay_pb2.InsertRequest()
    whole.CopyFrom(head)
    whole.rows = rows
    return whole


def test_rows_have_the_same_number_in_every_message() -> None:
    assert len(WITH_ROWS) >= 5
    for message in WITH_ROWS:
        assert message.fields_by_name["rows"].number == ROWS_FIELD
        assert max(field.number for field in message.fields) == ROWS_FIELD


@given(HEADS, ROWS)
def test_a_message_built_in_place_is_what_protobuf_reads(head: replay_pb2.InsertRequest, rows: bytes) -> None:
    message = message_with_rows(head, len(rows), lambda space: np.copyto(space, np.frombuffer(rows, np.uint8)))
    assert replay_pb2.InsertRequest.FromString(message) == with_rows(head, rows)


@given(HEADS, ROWS)
def test_a_message_of_protobuf_is_read_in_place(head: replay_pb2.InsertRequest, rows: bytes) -> None:
    framed = split_message(replay_pb2.InsertRequest, with_rows(head, rows).SerializeToString())
    assert framed.head == head
    assert framed.rows == rows


@given(HEADS, st.lists(ROWS, max_size=3), st.lists(UNKNOWN, max_size=3), st.randoms(use_true_random=False))
def test_fields_come_in_any_order_and_of_several_rows_the_last_count(
    head: replay_pb2.InsertRequest, several: list[bytes], unknown: list[bytes], random: object
) -> None:
    parts = [field.SerializeToString() for field in _fields_of(head)] + unknown
    parts += [bytes_field(ROWS_FIELD, rows) for rows in several]
    random.shuffle(parts)  # type: ignore[attr-defined]
    message = b"".join(parts)
    whole = replay_pb2.InsertRequest.FromString(message)
    framed = split_message(replay_pb2.InsertRequest, message)
    assert framed.rows == whole.rows
    whole.ClearField("rows")
    assert framed.head.SerializeToString(deterministic=True) == whole.SerializeToString(deterministic=True)


def _fields_of(message: replay_pb2.InsertRequest) -> list[replay_pb2.InsertRequest]:
    """Messages of one field each."""
    parts = []
    for field, value in message.ListFields():
        part = replay_pb2.InsertRequest()
        if isinstance(value, Message):
            getattr(part, field.name).CopyFrom(value)
        else:
            setattr(part, field.name, value)
        parts.append(part)
    return parts


@settings(max_examples=300)
@given(
    st.one_of(
        st.binary(max_size=60),
        st.builds(
            lambda head, rows, cut: with_rows(head, rows).SerializeToString()[:cut], HEADS, ROWS, st.integers(0, 90)
        ),
    )
)
def test_bytes_that_protobuf_takes_are_read_alike_and_others_are_refused(message: bytes) -> None:
    """The exception is groups, which the contract does not use: our parser refuses them, and protobuf skips them."""
    try:
        framed = split_message(replay_pb2.InsertRequest, message)
    except DecodeError:
        try:
            replay_pb2.InsertRequest.FromString(message)
        except DecodeError:
            return
        assert _has_group_or_long_number(message)
        return
    whole = replay_pb2.InsertRequest.FromString(message)
    assert framed.rows == whole.rows
    whole.ClearField("rows")
    assert framed.head == whole


def _has_group_or_long_number(message: bytes) -> bool:
    """Whether a byte may be the tag of a group, or a number may have more bytes than necessary."""
    return any(byte & 7 in (3, 4) for byte in message) or b"\x80" in message


@pytest.mark.parametrize(
    "message",
    [
        b"\x80",
        b"\x80" * 11,
        tag(15, 2) + b"\x05abcd",
        tag(1, 6),
        tag(1, 7),
        tag(1, 3),
        tag(1, 4),
        tag(2, 1) + b"1234567",
        b"\x0a",
    ],
)
def test_what_is_cut_or_not_of_this_contract_is_refused(message: bytes) -> None:
    with pytest.raises(DecodeError):
        split_message(replay_pb2.InsertRequest, message)


def test_a_message_of_more_fields_than_it_may_have_is_refused_after_so_many() -> None:
    pairs = b"\x08\x00"
    head, rows = split_rows(pairs * 3, most_fields=3)
    assert (head, bytes(rows)) == (pairs * 3, b"")
    with pytest.raises(DecodeError, match="more than 3 fields"):
        split_rows(pairs * 3 + b"\xff" * 40, most_fields=3)


def test_rows_lie_where_they_came() -> None:
    message = with_rows(replay_pb2.InsertRequest(table="t"), b"0123456789").SerializeToString()
    rows = split_message(replay_pb2.InsertRequest, message).rows
    assert rows.readonly
    assert rows.obj is message


def test_rows_of_a_message_built_in_place_are_not_copied_again() -> None:
    written: list[int] = []
    message = message_with_rows(
        replay_pb2.SampleResponse(), 1 << 20, lambda space: written.append(space.__array_interface__["data"][0])
    )
    (where,) = written
    assert 0 < where - np.frombuffer(message, np.uint8).__array_interface__["data"][0] < 20


def test_without_rows_there_are_none() -> None:
    assert len(split_message(replay_pb2.InsertRequest, b"").rows) == 0
    message = message_with_rows(replay_pb2.SampleResponse(), 0, lambda space: space.fill(1))
    assert replay_pb2.SampleResponse.FromString(message) == replay_pb2.SampleResponse()


COLUMNS = st.builds(Column, st.sampled_from(list(DTYPES)), st.lists(st.integers(1, 4), max_size=3))


@given(st.lists(COLUMNS, min_size=1, max_size=5), st.integers(0, 9), st.integers(0, 99))
def test_columns_lie_one_after_another_each_with_all_its_rows(columns: list[Column], count: int, seed: int) -> None:
    schema = Schema({f"column-{index}": column for index, column in enumerate(columns)})
    random = np.random.default_rng(seed)
    arrays = {
        name: random.integers(0, 2, (count, *column.shape)).astype(column.dtype) for name, column in schema.items()
    }
    rows = b"".join(array.tobytes() for array in arrays.values())
    views = column_views(schema, memoryview(rows), count)
    assert list(views) == list(arrays)
    for name, array in arrays.items():
        assert views[name].dtype == array.dtype
        assert views[name].shape == array.shape
        assert np.array_equal(views[name], array)
        assert not views[name].flags.writeable
        assert flat_rows(views[name]).shape == (count, array[0].size if count else int(np.prod(array.shape[1:])))


def test_columns_are_written_through_their_views() -> None:
    schema = Schema({"a": Column("bool"), "b": Column("int16", (2,))})

    def write(rows: NDArray[np.uint8]) -> None:
        views = column_views(schema, rows, 3)
        views["a"][:] = [True, False, True]
        views["b"][:] = [[1, 2], [3, 4], [5, 6]]

    message = message_with_rows(replay_pb2.SampleResponse(), 3 * schema.row_bytes, write)
    assert replay_pb2.SampleResponse.FromString(message).rows == b"\1\0\1" + np.arange(1, 7, dtype="<i2").tobytes()


def test_one_field_beside_the_rows_is_as_long_as_it_was() -> None:
    """Tests sizes around the boundaries at which the length prefix grows."""
    for size in (0, 1, 126, 127, 128, 129, 16_382, 16_383, 16_384, 2**21 - 1, 2**21):
        head = replay_pb2.InsertRequest(insertion=replay_pb2.Insertion(priorities=bytes(size)))
        framed = split_message(replay_pb2.InsertRequest, message_with_rows(head, size, lambda space: space.fill(7)))
        assert framed.head == head
        assert framed.rows == b"\7" * size


def test_a_message_joined_from_parts_is_the_one_that_was_written_in_place() -> None:
    head = replay_pb2.SampleResponse(table_uid=b"uid")
    arrays = [np.arange(6, dtype=np.float32).reshape(2, 3), np.array([True, False]), np.empty((2, 0), np.int64)]
    parts, rows = [array.data for array in arrays], b"".join(array.tobytes() for array in arrays)
    in_place = message_with_rows(head, len(rows), lambda space: np.copyto(space, np.frombuffer(rows, np.uint8)))
    assert joined_message(head, parts) == in_place
    assert split_message(replay_pb2.SampleResponse, joined_message(head, parts)).rows == rows
