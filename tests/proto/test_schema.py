"""Schemas: columns by name, checked, and in the contract's form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_proto.errors import FieldError
from replay_proto.schema import DTYPES, Column, Schema
from replay_proto.v1 import replay_pb2

COLUMNS = st.builds(Column, st.sampled_from(list(DTYPES)), st.lists(st.integers(1, 2**40), max_size=4))
NAMES = st.from_regex(r"[A-Za-z0-9.\-/][A-Za-z0-9_.\-/]{0,127}", fullmatch=True)
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


def test_no_dtype_at_all_is_not_taken_for_one() -> None:
    with pytest.raises(FieldError, match="dtype"):
        Column(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("given_dtype", ["complex64", "object", "U3", "datetime64[s]", "V4", "text", "i4,i4"])
def test_another_dtype_is_refused(given_dtype: str) -> None:
    with pytest.raises(FieldError) as error:
        Column(given_dtype)
    assert error.value.field == "dtype"


@pytest.mark.parametrize("shape", [(0,), (3, 0), (-1,)])
def test_a_dimension_below_1_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(FieldError) as error:
        Column("bool", shape)
    assert error.value.field == "shape"


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


def test_a_schema_cannot_be_changed() -> None:
    schema = Schema({"x": Column("bool")})
    with pytest.raises(AttributeError):
        schema.columns = {}  # type: ignore[misc]
    with pytest.raises(TypeError):
        schema["y"] = Column("bool")  # type: ignore[index]
