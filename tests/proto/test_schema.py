"""Schemas: validation and conversion to protobuf."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from replay_proto.errors import FieldError, InvalidArgumentError
from replay_proto.schema import DTYPES, Column, Schema
from replay_proto.v1 import replay_pb2

from tests.support.columns import columns

COLUMNS = columns(100)
NAMES = st.from_regex(r"[A-Za-z0-9.\-][A-Za-z0-9_.\-]{0,119}", fullmatch=True)  # with room for the suffix of a mask
SCHEMAS = st.builds(Schema, st.dictionaries(NAMES, COLUMNS, min_size=1, max_size=8))


@given(SCHEMAS)
def test_a_schema_survives_the_contract(schema: Schema) -> None:
    again = Schema.from_proto(schema.to_proto())
    assert again == schema
    assert list(again) == list(schema)


@given(SCHEMAS)
def test_a_row_takes_the_bytes_of_its_columns(schema: Schema) -> None:
    sizes = [column.dtype.itemsize * int(np.prod(column.shape, dtype=object)) for column in schema.values()]
    assert schema.row_bytes == sum(sizes)


def test_every_dtype_of_the_contract_is_known() -> None:
    assert set(DTYPES.values()) == set(replay_pb2.DataType.values()) - {replay_pb2.DATA_TYPE_UNSPECIFIED}
    for name, number in DTYPES.items():
        assert replay_pb2.DataType.Name(number) == f"DATA_TYPE_{name.upper()}"
        assert Column(name).dtype == np.dtype(name).newbyteorder("<")


@pytest.mark.parametrize("given_dtype", ["float32", np.float32, np.dtype("float32"), "f4", "<f4", ">f4", "=f4"])
def test_a_dtype_is_anything_that_numpy_takes_for_one(given_dtype: str | type | np.dtype[np.float32]) -> None:
    assert Column(given_dtype) == Column("float32")
    assert Column(given_dtype).dtype.str == "<f4"


@pytest.mark.parametrize(
    ("of_torch", "name"),
    [(torch.float32, "float32"), (torch.half, "float16"), (torch.long, "int64"), (torch.bool, "bool")],
)
def test_a_dtype_of_torch_is_the_one_of_the_same_name(of_torch: torch.dtype, name: str) -> None:
    assert Column(of_torch, 3) == Column(name, 3)


def test_no_dtype_at_all_is_not_taken_for_one() -> None:
    with pytest.raises(FieldError, match="dtype"):
        Column(None)


@pytest.mark.parametrize(
    ("given_dtype", "name"),
    [(float, "float64"), (int, "int64"), (bool, "bool"), (np.longlong, "int64"), (np.dtype(">u2"), "uint16")],
)
def test_a_type_of_python_or_numpy_is_what_numpy_takes_it_for(given_dtype: Any, name: str) -> None:
    assert Column(given_dtype) == Column(name)
    assert hash(Column(given_dtype)) == hash(Column(name))


REFUSED_DTYPES = [
    *("complex64", "object", "U3", "datetime64[s]", "V4", "text", "i4,i4", "float33", "", "(2,)f4"),
    *(
        str,
        object,
        np.longdouble,
        np.generic,
        torch.complex64,
        torch.float8_e5m2,
        torch.strided,
        {"names": ["a"]},
        [("a", "f4")],
        4,
        b"\xff",
    ),
]


@pytest.mark.parametrize("given_dtype", REFUSED_DTYPES)
def test_another_dtype_is_refused(given_dtype: Any) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        Column(given_dtype)
    assert error.value.metadata == {
        "field": "dtype",
        "expected": f"one of {', '.join(DTYPES)}",
        "got": repr(given_dtype),
    }


@pytest.mark.parametrize("shape", [4, (4,), [4], np.int32(4), np.array([4]), np.array(4), range(4, 5), iter([4])])
def test_a_shape_is_a_whole_number_or_several(shape: Any) -> None:
    assert Column("float32", shape) == Column("float32", (4,))
    assert all(type(size) is int for size in Column("float32", shape).shape)


REFUSED_SHAPES = [
    (0,),
    (3, 0),
    (-1,),
    -1,
    0,
    2.5,
    (2.5,),
    4.0,
    "4",
    ("4",),
    "44",
    [[2], [3]],
    [[2]],
    True,
    (True,),
    None,
    {4.0},
]


@pytest.mark.parametrize("shape", REFUSED_SHAPES)
def test_another_shape_is_refused(shape: Any) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        Column("bool", shape)
    assert error.value.metadata["field"] == "shape"
    assert "whole number of at least 1" in error.value.metadata["expected"]
    assert error.value.metadata["got"] == repr(shape)


@pytest.mark.parametrize("shape", [2**31, (2**16, 2**15), (2**62, 2**62), 2**63, 10**30])
def test_a_value_that_no_message_can_hold_is_refused(shape: Any) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"shape: expected a value of at most 2,147,483,647 bytes, got bool\["
    ):
        Column("bool", shape)
    assert Column("bool", 2**31 - 1).row_bytes == 2**31 - 1


def test_dimensions_are_as_many_as_numpy_has() -> None:
    assert len(Column("bool", [1] * 31).shape) == 31
    with pytest.raises(InvalidArgumentError, match="at most 31 dimensions, got 32"):
        Column("bool", [1] * 32)


@pytest.mark.parametrize("outer", ["obs", "obs/cam"])
def test_a_column_beside_those_nested_under_its_name_is_refused(outer: str) -> None:
    columns = {"obs/cam/left": Column("bool"), "obs.x": Column("bool"), outer: Column("bool"), "a": Column("bool")}
    for schema in (columns, dict(reversed(columns.items()))):
        with pytest.raises(InvalidArgumentError, match=f"got both {outer} and obs/cam/left"):
            Schema(schema)


def test_names_that_begin_alike_stand_beside_each_other() -> None:
    names = ["obs/cam", "obs/camera", "obs.cam", "observation", "next/obs/cam", "obs/joint/0", "obs/joint/1"]
    assert list(Schema({name: Column("bool") for name in names})) == names


@pytest.mark.parametrize("column", ["float32", np.dtype("float32"), ("float32", (4,)), None])
def test_a_schema_holds_columns_alone(column: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"columns\.x: expected a Column, such as Column\("):
        Schema({"x": column})


@pytest.mark.parametrize("made", [Column("float32", 4), Schema({"x": Column("bool")}), FieldError("a", "b", "c")])
def test_they_are_pickled_and_copied(made: Any) -> None:
    for copied in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        assert type(copied) is type(made)
        assert (str(copied), getattr(copied, "metadata", None)) == (str(made), getattr(made, "metadata", None))


@pytest.mark.parametrize("name", ["", "_x", "a b", "ä", "a\n", "a\0", "x" * 129, "a*"])
def test_a_name_that_is_not_allowed_is_refused(name: str) -> None:
    with pytest.raises(FieldError) as error:
        Schema({name: Column("bool")})
    assert error.value.field == "columns"
    assert repr(name) in error.value.got


@pytest.mark.parametrize("name", ["x", "x" * 128, "obs/camera", "a-b.c_d", "0"])
def test_a_name_that_is_allowed_is_taken(name: str) -> None:
    assert list(Schema({name: Column("bool")})) == [name]


def test_a_schema_has_at_least_one_column() -> None:
    with pytest.raises(FieldError) as error:
        Schema({})
    assert error.value.field == "columns"


def test_schemas_and_columns_show_themselves() -> None:
    assert str(Column("float32", (3, 4))) == "float32[3,4]"
    assert str(Column("bool")) == "bool"


def test_the_mask_of_an_optional_column_follows_it() -> None:
    schema = Schema({"goal": Column("float32", 4, optional=True), "x": Column("int8")})
    assert list(schema) == ["goal", "goal_present", "x"]
    assert schema["goal_present"] == Column("bool")
    assert schema.masks == {"goal": "goal_present"}
    assert Schema(dict(schema)) == schema
    kinds = [column.WhichOneof("source") for column in schema.to_proto()]
    assert kinds == ["stored", "presence", "stored"]
    elsewhere = Schema({"goal": schema["goal"], "x": schema["x"], "goal_present": Column("bool")})
    assert list(elsewhere) == ["goal", "x", "goal_present"]
    assert list(Schema.from_proto(elsewhere.to_proto())) == list(elsewhere)


def test_a_mask_needs_a_name_of_its_own() -> None:
    with pytest.raises(FieldError) as error:
        Schema({"goal": Column("float32", optional=True), "goal_present": Column("bool", 2)})
    assert (error.value.field, error.value.got) == ("columns.goal_present", "bool[2]")
    with pytest.raises(FieldError):
        Schema({"x" * 121: Column("float32", optional=True)})


@pytest.mark.parametrize(
    ("name", "of", "field", "expected", "got"),
    [
        ("goal_present", "gaol", "columns.goal_present.presence.of", "the name of a stored column", "'gaol'"),
        ("goal_present", "goal_present", "columns.goal_present.presence.of", "the name of a stored column", None),
        ("has_goal", "goal", "columns.has_goal.name", "goal_present", "has_goal"),
    ],
)
def test_a_mask_of_the_contract_names_its_column(
    name: str, of: str, field: str, expected: str, got: str | None
) -> None:
    columns = Schema({"goal": Column("float32")}).to_proto()
    columns.append(replay_pb2.Column(name=name, presence=replay_pb2.Presence(of=of)))
    with pytest.raises(FieldError) as error:
        Schema.from_proto(columns)
    assert (error.value.field, error.value.expected) == (field, expected)
    assert got is None or error.value.got == got


def test_a_schema_cannot_be_changed() -> None:
    schema = Schema({"x": Column("bool")})
    with pytest.raises(AttributeError):
        schema.columns = {}  # type: ignore[misc]
    with pytest.raises(TypeError):
        schema["y"] = Column("bool")  # type: ignore[index]
