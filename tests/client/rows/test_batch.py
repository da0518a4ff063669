"""Batches and rows as mappings of their columns: to Python, to torch and to tensordict."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from replay_client import Batch, Column, InternalServerError, Rows, Schema, Table
from replay_client._learning.answers import BatchReader
from replay_client._rows.columns import Columns
from replay_client.torch import TensorBatch, to_torch
from replay_proto.v1 import replay_pb2
from torch.utils.data import DataLoader, default_collate, default_convert

NESTED = {
    "obs/camera": Column("uint8", (2, 3)),
    "obs/joints/arm": Column("float32", 4),
    "obs/joints/leg": Column("float32"),
    "action": Column("int64"),
}
NAMES = list(NESTED)
KINDS = ["batch", "tensors", "rows"]


def numbered(count: int) -> dict[str, Any]:
    """Rows in which every value is the row's number."""
    numbers = np.arange(count)
    return {
        name: np.broadcast_to(numbers.reshape(-1, *[1] * len(column.shape)), (count, *column.shape)).astype(
            column.dtype
        )
        for name, column in NESTED.items()
    }


@pytest.fixture
def nested(new_table: Callable[..., Table]) -> Table:
    """A table with a nested observation and 20 rows."""
    table = new_table(columns=NESTED)
    table.insert(numbered(20))
    return table


@pytest.fixture(params=KINDS)
def given(nested: Table, request: pytest.FixtureRequest) -> Columns[Any]:
    """8 rows as each kind of `Columns`."""
    batch = nested.sample(8, beta=0.4)
    return {"batch": batch, "tensors": to_torch(batch), "rows": nested.read(batch.row_keys)}[request.param]


def test_it_is_a_mapping_of_its_columns(given: Columns[Any]) -> None:
    assert isinstance(given, Mapping)
    assert list(given) == list(given.keys()) == NAMES
    assert len(given) == len(NAMES)
    for name, column in given.items():
        assert column is given[name]
        assert column.shape == (8, *NESTED[name].shape)
        assert [int(value) for value in column.reshape(8, -1)[:, 0]] == list(given.row_keys)
    assert [id(column) for column in given.values()] == [id(given[name]) for name in NAMES]


def test_it_can_be_copied_into_a_dict_and_into_keywords(given: Columns[Any]) -> None:
    def called(**columns: Any) -> dict[str, Any]:
        return columns

    for copied in (dict(given), {**given}, called(**given)):
        assert list(copied) == NAMES
        assert copied["action"] is given["action"]


def test_it_says_how_many_rows_it_has(given: Columns[Any]) -> None:
    assert given.batch_size == 8
    assert len(given.row_keys) == 8


def test_a_nested_observation_is_found_by_its_name(given: Columns[Any]) -> None:
    obs = given["obs"]
    assert list(obs) == ["camera", "joints"]
    assert obs["camera"] is given["obs/camera"]
    assert obs["joints"]["arm"] is given["obs/joints/arm"]
    assert list(given["obs/joints"]) == ["arm", "leg"]
    assert given.get("obs", {})["camera"] is given["obs/camera"]


def test_what_can_be_got_is_in_it_and_nothing_else(given: Columns[Any]) -> None:
    for name in [*NAMES, "obs", "obs/joints"]:
        assert name in given
    others: list[Any] = ["ob", "obs/cam", "obs/", "", "camera", 5, None, "row_keys", "weights"]
    for other in others:
        assert other not in given
        assert given.get(other) is None
    with pytest.raises(KeyError, match="obs/cam; the columns are obs/camera, obs/joints/arm"):
        given["obs/cam"]


def test_it_is_equal_to_itself_alone_and_hashable(given: Columns[Any]) -> None:
    other = copy.copy(given)
    assert given == given
    assert given != other
    assert given != dict(given)
    assert len({given, given, other}) == 2


def test_it_shows_its_columns_with_dtype_and_shape(given: Columns[Any]) -> None:
    assert repr(given) == (
        f"<{type(given).__name__} of 8 rows, obs/camera: uint8[8,2,3], obs/joints/arm: float32[8,4], "
        "obs/joints/leg: float32[8], action: int64[8]>"
    )


def test_without_columns_it_shows_its_rows(nested: Table) -> None:
    assert repr(nested.sample(3, beta=0.4, columns=[])) == "<Batch of 3 rows>"


@pytest.mark.parametrize("copied_by", [copy.deepcopy, lambda rows: pickle.loads(pickle.dumps(rows))])
def test_copies_are_whole_and_the_callers_own(given: Columns[Any], copied_by: Callable[[Any], Any]) -> None:
    before = {name: np.asarray(column).copy() for name, column in given.items()}
    copied = copied_by(given)
    assert type(copied) is type(given)
    assert list(copied) == NAMES
    assert vars(copied).keys() == vars(given).keys()
    np.testing.assert_array_equal(copied.row_keys, given.row_keys)
    for column in copied.values():
        column[:] = 77
    for name, column in given.items():
        np.testing.assert_array_equal(np.asarray(column), before[name])


def test_rows_go_into_another_table_as_they_are(given: Columns[Any], new_table: Callable[..., Table]) -> None:
    other = new_table(columns=NESTED)
    found = other.read(other.insert(given))
    for name, column in found.items():
        np.testing.assert_array_equal(column, np.asarray(given[name]))


@pytest.mark.parametrize("name", ["keys", "items", "values", "get", "weights", "size", "row_keys", "columns", "beta"])
def test_a_column_may_be_called_like_an_attribute(new_table: Callable[..., Table], name: str) -> None:
    table = new_table(columns={name: Column("int64")})
    keys = table.insert({name: np.arange(5)})
    batch = table.sample(3, beta=0.4)
    for rows in (batch, to_torch(batch), table.read(keys)):
        assert [int(number) for number in rows[name]] == list(rows.row_keys)
        assert list(rows.keys()) == [name]
        assert isinstance(rows.batch_size, int)


def test_tensors_have_all_that_arrays_have(nested: Table) -> None:
    batch = nested.sample(8, beta=0.4)
    tensors = to_torch(batch)
    assert public(tensors) - {"clear", "pop", "popitem", "setdefault", "update"} == public(batch)
    for name in ("beta", "table_size", "total_mass", "smallest_probability", "inserted", "batch_size"):
        assert getattr(tensors, name) == getattr(batch, name)
    assert tensors.row_keys is batch.row_keys
    for name in ("weights", "probabilities"):
        of_tensors, of_batch = getattr(tensors, name), getattr(batch, name)
        assert isinstance(of_tensors, torch.Tensor)
        np.testing.assert_array_equal(of_tensors.numpy(), of_batch)


def public(thing: object) -> set[str]:
    """Names of all public attributes of an object."""
    return {name for name in dir(thing) if not name.startswith("_")}


def test_torch_converts_and_collates_batches(nested: Table) -> None:
    first, second = nested.sample(8, beta=0.4), nested.sample(8, beta=0.4)
    converted = default_convert(first)  # type: ignore[no-untyped-call]
    collated = default_collate([first, second])
    assert type(converted) is type(collated) is dict
    assert list(converted) == list(collated) == NAMES
    for name in NAMES:
        np.testing.assert_array_equal(converted[name].numpy(), first[name])
        np.testing.assert_array_equal(collated[name].numpy(), np.stack([first[name], second[name]]))


def as_it_is(batch: Any) -> Any:
    """A collate function that leaves batches unchanged."""
    return batch


def test_batches_pass_through_the_workers_of_a_data_loader(nested: Table) -> None:
    batches = [nested.sample(8, beta=0.4) for _ in range(2)]
    # Otherwise, a worker would be forked from a process with gRPC's threads.
    loader: DataLoader[Any] = DataLoader(
        batches,  # type: ignore[arg-type]
        batch_size=None,
        num_workers=1,
        multiprocessing_context="spawn",
        collate_fn=as_it_is,
    )
    came = list(loader)
    for batch, expected in zip(came, batches, strict=True):
        assert isinstance(batch, Batch)
        np.testing.assert_array_equal(batch.row_keys, expected.row_keys)
        np.testing.assert_array_equal(batch["obs/camera"], expected["obs/camera"])
        assert nested.update_priorities(batch, np.ones(8)).stale == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_tensordict_takes_it(nested: Table, kind: str) -> None:
    tensordict = pytest.importorskip("tensordict")
    batch = nested.sample(8, beta=0.4)
    given = {"batch": batch, "tensors": to_torch(batch), "rows": nested.read(batch.row_keys)}[kind]
    made = tensordict.TensorDict(dict(given), batch_size=given.batch_size)
    assert set(made.keys()) == set(NAMES)
    np.testing.assert_array_equal(made.unflatten_keys("/")["obs", "joints", "arm"].numpy(), batch["obs/joints/arm"])


def test_a_tensordict_is_rows(nested: Table, new_table: Callable[..., Table]) -> None:
    tensordict = pytest.importorskip("tensordict")
    made = tensordict.TensorDict(dict(nested.read([3, 5])), batch_size=2).unflatten_keys("/")
    other = new_table(columns=NESTED)
    assert other.read(other.insert(made))["action"].tolist() == [3, 5]


@pytest.mark.parametrize("kind", KINDS)
def test_priorities_are_set_by_the_batch_itself(nested: Table, kind: str) -> None:
    batch = nested.sample(8, beta=0.4)
    given = {"batch": batch, "tensors": to_torch(batch), "rows": nested.read(batch.row_keys)}[kind]
    assert isinstance(given, Batch | TensorBatch | Rows)
    result = nested.update_priorities(given, np.full(8, 3.5))
    assert (result.updated, result.stale) == (len(set(batch.row_keys.tolist())), 0)
    assert set(nested.read(given).priorities.tolist()) == {3.5}
    with nested.sampler(8, beta=0.4) as sampler:
        sampler.update_priorities(given, torch.full((8,), 4.5))
        sampler.flush(timeout_s=10)
    assert set(nested.read(given).priorities.tolist()) == {4.5}


@pytest.mark.parametrize("row_count", [0, 1, 3])
def test_an_answer_with_other_rows_than_its_keys_is_a_fault_of_the_server(row_count: int) -> None:
    schema = Schema({"x": Column("int64")})
    numbers, shares = np.arange(2), np.ones(2)
    batch = replay_pb2.Batch(
        keys=numbers.tobytes(),
        probabilities=shares.tobytes(),
        weights=shares.astype(np.float32).tobytes(),
    )
    answer = replay_pb2.SampleResponse(batch=batch, rows=np.arange(row_count).tobytes())
    with pytest.raises(InternalServerError, match=f"the server sent {8 * row_count} bytes for 2 rows of 16 bytes"):
        BatchReader(schema, None).sampled(answer.SerializeToString(), replay_pb2.Draw())
