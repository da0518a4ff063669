"""Checking and packing rows: casts, refusals, lossless transfer."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from replay_client import Column, InvalidArgumentError, Schema
from replay_client._rows.block import RowBlock, checked_priority
from replay_client._rows.checks import as_array, checked_keys, checked_priorities, checked_rows, packed_rows
from replay_proto.framing import column_views, split_message
from replay_proto.schema import DTYPES
from replay_proto.v1 import replay_pb2

NAMES = st.from_regex(r"[a-z][a-z0-9_.\-]{0,10}", fullmatch=True)
COLUMNS = st.builds(Column, st.sampled_from(sorted(DTYPES)), hnp.array_shapes(min_dims=0, max_dims=3, max_side=4))
SCHEMAS = st.dictionaries(NAMES, COLUMNS, min_size=1, max_size=5).map(Schema)


def arrays(column: Column, count: int) -> st.SearchStrategy[Any]:
    """Any values of a column. Hypothesis does not know bfloat16, so its values come from 16 bits."""
    if column.dtype.name != "bfloat16":
        return hnp.arrays(column.dtype, (count, *column.shape))
    return hnp.arrays(np.uint16, (count, *column.shape)).map(lambda bits: bits.view(column.dtype))


def comparable(values: Any) -> Any:
    """The same values in a dtype whose NaN NumPy recognizes."""
    return values.astype(np.float32) if values.dtype.name == "bfloat16" else values


ONE_STREAM = np.array([1], np.uint64)


def add(block: RowBlock, values: dict[str, Any]) -> None:
    """Add a row of the only stream."""
    block.add(values, 0)
    if block.count == 1:
        block.begin_run(0, 0, 0, 0)


def unpacked(schema: Schema, message: bytes) -> tuple[dict[str, Any], replay_pb2.WriteRequest]:
    framed = split_message(replay_pb2.WriteRequest, message)
    return column_views(schema, framed.rows, framed.head.insertion.row_count), framed.head


def taken_from(block: RowBlock) -> bytes:
    """The message with a block's rows, which leave the block."""
    message = b"".join(block.message(write_request(0)))
    block.clear()
    return message


def write_request(row_count: int) -> replay_pb2.WriteRequest:
    return replay_pb2.WriteRequest(table="t", insertion=replay_pb2.Insertion(row_count=row_count))


@given(st.data())
def test_packed_rows_are_the_rows(data: st.DataObject) -> None:
    schema = data.draw(SCHEMAS)
    count = data.draw(st.integers(1, 20))
    rows = {name: data.draw(arrays(column, count)) for name, column in schema.items()}
    columns, row_count = checked_rows(schema, rows)
    assert row_count == count
    got, head = unpacked(schema, packed_rows(write_request(count), schema, columns, count))
    assert head.table == "t"
    for name in schema:
        np.testing.assert_array_equal(comparable(got[name]), comparable(rows[name]))


@given(st.data())
def test_rows_one_by_one_are_the_rows_together(data: st.DataObject) -> None:
    schema = data.draw(SCHEMAS)
    count = data.draw(st.integers(1, 10))
    rows = {name: data.draw(arrays(column, count)) for name, column in schema.items()}
    as_python = data.draw(st.booleans())
    block = RowBlock(schema, count, ONE_STREAM)
    for index in range(count):
        add(block, {name: _python(rows[name][index], as_python) for name in schema})
    got, head = unpacked(schema, taken_from(block))
    assert (head.insertion.row_count, head.insertion.priorities, block.count) == (count, b"", 0)
    for name in schema:
        np.testing.assert_array_equal(comparable(got[name]), comparable(rows[name]))


def _python(value: Any, as_python: bool) -> Any:
    return value.tolist() if as_python and value.dtype.kind not in "fV" else value


FLOAT, INT, SMALL, BOOL = Column("float32"), Column("int64"), Column("uint8"), Column("bool")
VECTOR = Column("float32", (2,))

ACCEPTED = [
    (FLOAT, 1.5, 1.5),
    (FLOAT, 2, 2.0),
    (FLOAT, True, 1.0),
    (FLOAT, np.float64(0.5), 0.5),
    (FLOAT, np.int32(3), 3.0),
    (FLOAT, np.array(0.5), 0.5),
    (INT, 7, 7),
    (INT, np.uint8(7), 7),
    (INT, True, 1),
    (INT, np.bool_(True), 1),
    (SMALL, 255, 255),
    (SMALL, np.uint64(3), 3),
    (SMALL, np.int64(3), 3),
    (SMALL, np.array(3), 3),
    (BOOL, True, True),
    (BOOL, np.bool_(False), False),
    (BOOL, 1, True),
    (BOOL, 0.0, False),
    (BOOL, np.float32(1), True),
    (BOOL, np.array(0.0), False),
    (BOOL, torch.tensor(True), True),
    (BOOL, torch.tensor(1.0), True),
    (Column("bool", 2), [1, 0.0], [True, False]),
    (Column("bool", 2), np.array([0, 1], np.uint8), [False, True]),
    (Column("bool", 2), torch.tensor([1.0, 0.0], requires_grad=True), [True, False]),
    (Column("float16"), 0.5, 0.5),
    (VECTOR, [1, 2], [1.0, 2.0]),
    (VECTOR, (1.0, 2.0), [1.0, 2.0]),
    (VECTOR, np.array([1, 2]), [1.0, 2.0]),
    (VECTOR, np.array([1, 2], np.float64), [1.0, 2.0]),
    (VECTOR, np.array([[1, 9], [2, 9]], np.float32)[:, 0], [1.0, 2.0]),
    (Column("uint8", (2,)), [0, 255], [0, 255]),
    (Column("int8", (2,)), np.array([-128, 127]), [-128, 127]),
    (Column("uint8", (2,)), np.array([1, 2]), [1, 2]),
    (Column("uint8", (2,)), torch.tensor([0, 255]), [0, 255]),
    (Column("int8", (2,)), torch.tensor([-128, 127]), [-128, 127]),
    (Column("int8", (2,)), np.array([0, 127], np.uint64), [0, 127]),
    (Column("uint64", (2,)), np.array([0, 127], np.int8), [0, 127]),
    (FLOAT, 3.4028234e38, np.finfo(np.float32).max),
    (FLOAT, float("inf"), np.inf),
    (FLOAT, float("nan"), np.nan),
    (Column("float16"), 65504, 65504),
    (Column("float16"), float("-inf"), -np.inf),
    (VECTOR, np.array([float("-inf"), 1e-300]), [-np.inf, 0.0]),
    (VECTOR, torch.tensor([float("nan"), 1.0], dtype=torch.float64), [np.nan, 1.0]),
    (FLOAT, torch.tensor(0.5, requires_grad=True), 0.5),
    (FLOAT, torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
    (INT, torch.tensor(7), 7),
    (SMALL, torch.tensor(255), 255),
    (Column("float16"), torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
    (VECTOR, torch.tensor([1.0, 2.0], requires_grad=True), [1.0, 2.0]),
    (VECTOR, torch.tensor([1.0, 2.0], dtype=torch.bfloat16, requires_grad=True), [1.0, 2.0]),
    (VECTOR, torch.tensor([1.0, 2.0], dtype=torch.float16), [1.0, 2.0]),
    (VECTOR, torch.tensor([1j, 2j]).imag.conj(), [1.0, 2.0]),
    (VECTOR, [torch.tensor(1.0, requires_grad=True), 2], [1.0, 2.0]),
    (VECTOR, tuple(torch.tensor([1.0, 2.0], dtype=torch.bfloat16)), [1.0, 2.0]),
]

REFUSED = [
    (FLOAT, "1.5"),
    (FLOAT, None),
    (FLOAT, 1j),
    (FLOAT, np.complex64(1)),
    (FLOAT, Decimal(1)),
    (FLOAT, [1.0]),
    (FLOAT, np.ones(1, np.float32)),
    (FLOAT, {"a": 1.0}),
    (INT, 1.5),
    (INT, 1.0),
    (INT, np.float32(1)),
    (INT, 2**63),
    (INT, np.uint64(2**63)),
    (SMALL, 256),
    (SMALL, -1),
    (BOOL, 2),
    (BOOL, "yes"),
    (BOOL, 0.5),
    (BOOL, float("nan")),
    (BOOL, 1j),
    (BOOL, np.ones(1)),
    (BOOL, torch.tensor(0.5)),
    (BOOL, None),
    (Column("float16"), "1"),
    (VECTOR, 1.0),
    (VECTOR, [1.0]),
    (VECTOR, [1.0, 2.0, 3.0]),
    (VECTOR, [[1.0, 2.0]]),
    (VECTOR, np.ones((1, 2), np.float32)),
    (VECTOR, np.ones(2, complex)),
    (VECTOR, [[1.0], [1.0, 2.0]]),
    (Column("int8", (2,)), np.array([-129, 0])),
    (Column("int8", (2,)), np.array([0.5, 0.5])),
    (Column("uint8", (2,)), np.array([1, 256])),
    (Column("uint8", (2,)), [1, 256]),
    (Column("uint8", (2,)), torch.tensor([1, -1])),
    (Column("int8", (2,)), torch.tensor([1, 128])),
    (Column("int8", (2,)), np.array([1, 2**63], np.uint64)),
    (FLOAT, 1e39),
    (FLOAT, -1e39),
    (FLOAT, 3.4028236e38),
    (FLOAT, 10**39),
    (FLOAT, np.float64(1e39)),
    (FLOAT, torch.tensor(1e39, dtype=torch.float64)),
    (Column("float16"), 70000),
    (Column("float16"), 70000.0),
    (Column("float16"), np.float32(70000)),
    (Column("float16", (2,)), np.array([0, 70000])),
    (Column("float16", (2,)), [float("inf"), -70000.0]),
    (VECTOR, [1e39, 0.0]),
    (VECTOR, np.array([float("nan"), 1e39])),
    (VECTOR, torch.tensor([0.0, 1e39], dtype=torch.float64)),
    (Column("bool", (2,)), [1, 2]),
    (Column("bool", (2,)), np.array([0.0, 0.5])),
    (INT, torch.tensor(7.0)),
    (SMALL, torch.tensor(256)),
    (VECTOR, torch.ones(3)),
    (VECTOR, torch.ones(2, device="meta")),
    (VECTOR, torch.ones(2).to_sparse()),
    (VECTOR, [torch.ones(1), torch.ones(2, requires_grad=True)]),
]


@pytest.mark.parametrize(("column", "value", "expected"), ACCEPTED)
def test_a_value_of_the_same_kind_is_cast(column: Column, value: Any, expected: Any) -> None:
    schema = Schema({"x": column})
    block = RowBlock(schema, 2, ONE_STREAM)
    add(block, {"x": value})
    got, _ = unpacked(schema, taken_from(block))
    np.testing.assert_array_equal(got["x"], np.asarray([expected], column.dtype))


@pytest.mark.parametrize(("column", "value", "expected"), ACCEPTED)
def test_rows_of_the_same_kind_are_cast(column: Column, value: Any, expected: Any) -> None:
    schema = Schema({"x": column})
    given_rows = value[None] if isinstance(value, np.ndarray | torch.Tensor) and value.ndim else [value]
    columns, count = checked_rows(schema, {"x": given_rows})
    got, _ = unpacked(schema, packed_rows(write_request(1), schema, columns, count))
    np.testing.assert_array_equal(got["x"], np.asarray([expected], column.dtype))


@pytest.mark.parametrize(("column", "value"), REFUSED)
def test_a_value_that_does_not_fit_is_refused_and_leaves_the_block_as_it_was(column: Column, value: Any) -> None:
    schema = Schema({"first": BOOL, "x": column})
    block = RowBlock(schema, 2, ONE_STREAM)
    with pytest.raises(InvalidArgumentError) as refusal:
        add(block, {"first": True, "x": value})
    assert "x" in str(refusal.value)
    assert refusal.value.metadata.keys() == {"field", "expected", "got"}
    assert block.count == 0


@pytest.mark.parametrize(("column", "value"), [(c, v) for c, v in REFUSED if not isinstance(v, dict)])
def test_rows_that_do_not_fit_are_refused(column: Column, value: Any) -> None:
    given_rows = value[None] if isinstance(value, np.ndarray | torch.Tensor) and value.ndim else [value]
    with pytest.raises(InvalidArgumentError) as refusal:
        checked_rows(Schema({"x": column}), {"x": given_rows})
    assert refusal.value.metadata["field"] == "columns.x"


TWO = Schema({"a": Column("float32"), "b/c": Column("float32", (2,)), "b/d": Column("int8")})


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"a": [1.0]}, "missing: b/c, b/d"),
        ({"a": [1.0], "b": {"c": [[1.0, 2.0]], "d": [1], "e": [1]}}, "unknown: b/e"),
        ({"a": [1.0], "b": {"c": [[1.0, 2.0]], "d": [1]}, "b/c": [[1.0, 2.0]]}, "given once"),
        ({"a": [1.0, 2.0], "b": {"c": [[1.0, 2.0]], "d": [1]}}, "float32[2,2]"),
        ({"a": [], "b": {"c": np.empty((0, 2)), "d": []}}, "row_count"),
        ({"a": 1.0, "b": {"c": [[1.0, 2.0]], "d": [1]}}, "float32[n]"),
    ],
)
def test_columns_and_lengths_are_checked(rows: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said.replace("[", r"\[")):
        checked_rows(TWO, rows)


def test_one_row_may_be_nested() -> None:
    block = RowBlock(TWO, 4, ONE_STREAM)
    add(block, {"a": 1.0, "b": {"c": [1.0, 2.0], "d": 3}})
    add(block, {"a": 1.0, "b/c": [1.0, 2.0], "b/d": 3})
    got, _ = unpacked(TWO, taken_from(block))
    assert got["b/d"].tolist() == [3, 3]


@pytest.mark.parametrize("priority", [0, 2.5, np.float32(2.5), np.array(3), torch.tensor(2.5, requires_grad=True)])
def test_a_priority_is_any_number(priority: Any) -> None:
    assert checked_priority(priority) == as_array(priority)


@pytest.mark.parametrize("priority", [-1.0, float("nan"), float("inf"), "1", [1.0], 10**400, 1j, torch.ones(1)])
def test_a_wrong_priority_is_refused(priority: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="priority"):
        checked_priority(priority)


@pytest.mark.parametrize(
    "keys",
    [
        [3, 5],
        np.array([3, 5], np.int32),
        torch.tensor([3, 5]),
        torch.tensor([3.0, 5.0]).long(),
        [torch.tensor(3), torch.tensor(5)],
    ],
)
def test_keys_are_whole_numbers_of_any_library(keys: Any) -> None:
    assert checked_keys(keys).tolist() == [3, 5]


@pytest.mark.parametrize("keys", [3, [3.5], [[3]], {"a": [3]}, {}, "3", None, torch.tensor([3.0])])
def test_other_keys_are_refused(keys: Any) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        checked_keys(keys)
    assert refusal.value.metadata["field"] == "keys"


@pytest.mark.parametrize(
    "priorities",
    [
        [0.5, 2.0],
        torch.tensor([0.5, 2.0], requires_grad=True),
        torch.tensor([0.5, 2.0], dtype=torch.bfloat16, requires_grad=True),
        torch.tensor([0.5, 2.0], dtype=torch.float16),
        [torch.tensor(0.5, requires_grad=True), torch.tensor(2.0)],
    ],
)
def test_priorities_are_numbers_of_any_library(priorities: Any) -> None:
    checked = checked_priorities(priorities, 2)
    assert checked.dtype == np.float64
    assert checked.tolist() == [0.5, 2.0]


def test_signed_td_errors_are_refused_and_the_message_says_what_to_do() -> None:
    with pytest.raises(InvalidArgumentError, match=r"at least 0, such as abs\(td_errors\), got -0.5"):
        checked_priorities(torch.tensor([0.5, -0.5], requires_grad=True), 2)


@pytest.mark.parametrize("rows", [[1, 2], None, np.ones(3), "abc"])
def test_what_is_no_mapping_is_refused_as_rows(rows: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="columns: expected a mapping"):
        checked_rows(TWO, rows)


def test_columns_are_not_called_by_numbers() -> None:
    with pytest.raises(InvalidArgumentError, match="unknown: 0"):
        checked_rows(TWO, {0: [1]})  # type: ignore[dict-item]


def test_arrays_may_be_reused_by_the_caller() -> None:
    block = RowBlock(Schema({"x": VECTOR}), 3, ONE_STREAM)
    array = np.zeros(2, np.float32)
    for value in range(3):
        array[:] = value
        add(block, {"x": array})
    assert block.columns()["x"].tolist() == [[0, 0], [1, 1], [2, 2]]


@pytest.mark.parametrize("priority", [np.inf, np.nan, -1.0, -np.inf])
def test_priorities_that_are_no_numbers_from_0_are_refused_before_they_are_sent(priority: float) -> None:
    with pytest.raises(InvalidArgumentError, match=f"priorities: expected finite numbers .* got {priority}"):
        checked_priorities([1.0, priority, 2.0], 3)
