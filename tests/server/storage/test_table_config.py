"""Table configs: validation, comparison, serialization."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_proto.errors import FieldError
from replay_proto.rate_limit import RateLimit
from replay_proto.schema import Column, Schema
from replay_proto.steps import Steps, Transitions
from replay_server.backends import BACKENDS as BACKEND_CLASSES
from replay_server.storage.table_config import TableConfig

from tests.support.columns import columns
from tests.support.rows import WHOLE

COLUMNS = columns(9)
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,20}", fullmatch=True)
BACKENDS: st.SearchStrategy[tuple[str, dict[str, float]]] = st.one_of(
    st.tuples(
        st.just("sum_tree"),
        st.fixed_dictionaries(
            {},
            optional={
                "alpha": st.floats(0, 3),
                "epsilon": st.floats(0, 10),
                "max_priority": st.floats(1e-6, 1e6),
            },
        ),
    ),
    st.tuples(st.just("rank"), st.fixed_dictionaries({}, optional={"alpha": st.floats(0, 3)})),
    st.tuples(st.just("uniform"), st.just({})),
    st.tuples(st.just("fifo"), st.fixed_dictionaries({}, optional={"max_times_sampled": st.integers(1, 10_000)})),
)


@st.composite
def configs(draw: st.DrawFn) -> TableConfig:
    """Any valid config."""
    backend, parameters = draw(BACKENDS)
    capacity = draw(st.integers(1, BACKEND_CLASSES["uniform" if backend == "fifo" else backend].most_rows))
    return TableConfig(
        draw(NAMES),
        Schema(draw(st.dictionaries(NAMES, COLUMNS, min_size=1, max_size=5))),
        capacity,
        backend,
        parameters,
        draw(st.none() | st.integers(0, 2**64 - 1)),
        None if backend == "fifo" else draw(st.none() | rate_limits(capacity)),
        whole_uid=draw(st.just(b"") | st.binary(min_size=16, max_size=16)),
        whole_shards=tuple(draw(st.lists(st.integers(0, 32_767), max_size=3))),
    )


@st.composite
def rate_limits(draw: st.DrawFn, capacity: int) -> RateLimit:
    """Any valid rate limit of a table with this capacity."""
    min_size = draw(st.integers(1, min(capacity, 1 << 20)))
    ratio = draw(st.none() | st.floats(1e-3, 1e3))
    buffer = None if ratio is None else max(1.0, ratio) * draw(st.floats(1.1, 1e3))
    limit = RateLimit.of(min_size, ratio, buffer)
    assert limit is not None
    return limit


@given(configs())
def test_a_config_survives_the_contract_and_the_manifest(config: TableConfig) -> None:
    assert TableConfig.from_proto(config.message) == config
    assert TableConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert config.difference(TableConfig.from_proto(config.message)) is None


def test_the_manifest_of_a_table_without_optional_columns_is_that_of_earlier_versions() -> None:
    assert table().to_json()["columns"]["payload"] == {"dtype": "float32", "shape": [3]}
    optional = table(schema=Schema({"x": Column("int8", optional=True)})).to_json()["columns"]
    assert optional["x"] == {"dtype": "int8", "shape": [], "optional": True}
    assert optional["x_present"] == {"dtype": "bool", "shape": []}


@given(configs(), configs())
def test_a_difference_is_found_from_either_side(first: TableConfig, second: TableConfig) -> None:
    one, other = first.difference(second), second.difference(first)
    assert (one is None) == (other is None)
    # Names are compared when a table is looked up; seeds may differ.
    same = all(
        getattr(first, name) == getattr(second, name)
        for name in ("schema", "capacity", "backend", "parameters", "rate_limit")
    ) and list(first.schema) == list(second.schema)
    assert (one is None) == same


@given(configs())
def test_the_ring_is_longer_than_the_capacity(config: TableConfig) -> None:
    assert config.slack == max(64, config.capacity // 64)
    assert config.slots == config.capacity + config.slack


def table(**changes: object) -> TableConfig:
    """A config with changed fields."""
    return TableConfig(**{"name": "table", "schema": WHOLE, "capacity": 100, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "field", "expected", "got"),
    [
        ({"capacity": 7}, "capacity", "100", "7"),
        ({"backend": "uniform"}, "backend", "sum_tree", "uniform"),
        ({"parameters": {"alpha": 0.5}}, "alpha", "0.6", "0.5"),
        ({"parameters": {"max_priority": 0.5}}, "max_priority", "absent", "0.5"),
        ({"rate_limit": RateLimit(5)}, "min_size", "absent", "5"),
        ({"schema": Schema({**WHOLE, "value": Column("bool")})}, "columns.value", "int64", "bool"),
        (
            {"schema": Schema({**WHOLE, "value": Column("int64", optional=True)})},
            "columns.value",
            "int64",
            "int64, optional",
        ),
        ({"schema": Schema({**WHOLE, "x": Column("bool", (2, 3))})}, "columns.x", "absent", "bool[2,3]"),
    ],
)
def test_a_difference_names_both_sides(change: dict[str, object], field: str, expected: str, got: str) -> None:
    difference = table().difference(table(**change))
    assert difference is not None
    assert (difference.field, difference.expected, difference.got) == (field, expected, got)


def test_another_order_of_columns_is_a_difference() -> None:
    other = table(schema=Schema({name: WHOLE[name] for name in reversed(list(WHOLE))}))
    difference = table().difference(other)
    assert difference is not None
    assert difference.field == "columns"


def test_defaults_that_are_given_are_no_difference() -> None:
    assert table().difference(table(parameters={"alpha": 0.6, "epsilon": 1e-6})) is None


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "a/b"}, "name"),
        ({"name": "a" * 129}, "name"),
        ({"capacity": 0}, "capacity"),
        ({"capacity": (1 << 40) + 1}, "capacity"),
        ({"capacity": 2_000_000_001, "backend": "rank"}, "capacity"),
        ({"whole_uid": b"short"}, "whole_uid"),
        ({"whole_shards": tuple(range(1025))}, "whole_shards"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"backend": "heap"}, "backend"),
        ({"parameters": {"beta": 1.0}}, "beta"),
        ({"parameters": {"alpha": -1.0}}, "alpha"),
        ({"parameters": {"max_times_sampled": 10_001.0}}, "max_times_sampled"),
        ({"backend": "fifo", "parameters": {"max_times_sampled": 0.0}}, "max_times_sampled"),
        ({"backend": "fifo", "parameters": {"max_times_sampled": 1.5}}, "max_times_sampled"),
        ({"backend": "fifo", "parameters": {"alpha": 0.6}}, "alpha"),
        ({"backend": "uniform", "parameters": {"max_times_sampled": 0.5}}, "max_times_sampled"),
        ({"backend": "fifo", "rate_limit": RateLimit(5)}, "rate_limiter"),
        ({"rate_limit": RateLimit(101)}, "min_size"),
    ],
)
def test_a_field_that_cannot_be_used_is_named(change: dict[str, object], field: str) -> None:
    with pytest.raises(FieldError) as error:
        table(**change)
    assert error.value.field == field


def test_a_stored_table_is_opened_even_if_it_never_reaches_its_min_size() -> None:
    steps = Steps.of(dict(WHOLE), Transitions(1))
    stored = table(schema=steps.schema, steps=steps, rate_limit=RateLimit(100))
    assert TableConfig.from_json(stored.to_json()) == stored
    with pytest.raises(FieldError, match="min_size"):
        TableConfig.from_proto(stored.message)
