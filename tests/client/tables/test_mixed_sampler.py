"""Samplers of several tables."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from replay_client import (
    ClosedError,
    Column,
    DeadlineExceededError,
    InvalidArgumentError,
    Mask,
    MixedBatch,
    MixedKeys,
    MixedSampler,
    ReplayClient,
    Sequences,
    Table,
    TableEmptyError,
    TableNotFoundError,
)
from replay_client._rows.buffers import JoinedBuffers
from replay_client._rows.mapped_rows import MappedRows
from replay_client.torch import MixedTensorBatch, MixedTensorSampler

from tests.client.numbered import assert_whole, rows
from tests.support.caller import wire_only
from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess

ALL_DATA_PATHS = True

NewTable = Callable[..., Table]
DEMO_FIRST = 500
"""Number of the first row of the table `demo`, whose numbers thus differ from those of `online`."""


@pytest.fixture
def tables(new_table: NewTable) -> dict[str, Table]:
    """Two tables with rows: a prioritized one, and a uniform one."""
    online, demo = new_table(alpha=1.0, epsilon=0.0), new_table(backend="uniform")
    online.insert(rows(range(100)), priorities=np.arange(1.0, 101.0))
    demo.insert(rows(range(DEMO_FIRST, DEMO_FIRST + 50)))
    return {online.name: online, demo.name: demo}


@pytest.fixture
def names(tables: dict[str, Table]) -> list[str]:
    """Their names."""
    return list(tables)


def numbers_of(batch: MixedBatch | MixedTensorBatch) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The numbers of the rows, by key and table."""
    return np.where(batch.tables == 0, batch.row_keys, batch.row_keys + DEMO_FIRST)


def check(batch: MixedBatch, names: list[str], sizes: list[int]) -> None:
    """Check that all rows are whole, and are those of their keys and tables."""
    assert_whole(batch)
    np.testing.assert_array_equal(batch["number"], numbers_of(batch))
    assert batch.tables.tolist() == [0] * sizes[0] + [1] * sizes[1]
    assert list(batch.parts) == names
    assert [part.batch_size for part in batch.parts.values()] == sizes
    online, demo = batch.parts.values()
    assert (online.table_size, demo.table_size, batch.table_size) == (100, 50, 150)
    for name in ("number", "obs", "done"):
        np.testing.assert_array_equal(np.concatenate([online[name], demo[name]]), batch[name])
        assert np.shares_memory(online[name], batch[name])
        assert np.shares_memory(demo[name], batch[name])
    np.testing.assert_array_equal(demo.row_keys, batch.row_keys[sizes[0] :])
    np.testing.assert_array_equal(demo.probabilities, np.full(sizes[1], 1 / 50))
    np.testing.assert_array_equal(batch.probabilities[sizes[0] :], demo.probabilities)


@pytest.mark.parametrize("prefetch", [1, 3, 16])
def test_batches_have_rows_of_every_table_and_updates_go_to_theirs(
    client: ReplayClient, tables: dict[str, Table], names: list[str], prefetch: int
) -> None:
    sizes = [12, 5]
    online, demo = tables.values()
    updated: list[dict[int, float]] = [{}, {}]
    with client.mixed_sampler(dict(zip(names, sizes, strict=True)), beta=0.4, prefetch=prefetch) as sampler:
        for step, batch in enumerate(islice(sampler, 30)):
            assert 0 <= sampler.in_flight < prefetch
            check(batch, names, sizes)
            priorities = step * 1000 + 1.0 + batch.row_keys + 0.5 * batch.tables
            sampler.update_priorities(batch, priorities)
            for table, key, priority in zip(batch.tables, batch.row_keys.tolist(), priorities, strict=True):
                updated[table][key] = priority
        sampler.flush()
        assert sampler.unacknowledged == 0
        assert sampler.stale == 0
    assert sampler.updated == sum(each.updated for each in sampler.samplers.values()) > 0
    for table, expected in zip((online, demo), updated, strict=True):
        np.testing.assert_array_equal(table.read(list(expected)).priorities, list(expected.values()))


def test_a_batch_is_the_caller_s_to_keep(client: ReplayClient, names: list[str]) -> None:
    with client.mixed_sampler({names[0]: 7, names[1]: 3}, beta=0.4) as sampler:
        kept = list(islice(sampler, 20))
        for batch in kept:
            check(batch, names, [7, 3])
        kept[0]["obs"][:] = -1
        assert (kept[0].parts[names[1]]["obs"] == -1).all()
        del kept[::2]
        for batch in islice(sampler, 20):
            check(batch, names, [7, 3])
        for batch in kept:
            check(batch, names, [7, 3])


@pytest.mark.parametrize("norm", ["batch", "table"])
def test_weights_correct_for_priorities_within_each_table(client: ReplayClient, names: list[str], norm: Any) -> None:
    with client.mixed_sampler({names[0]: 64, names[1]: 64}, beta=0.7, weight_norm=norm) as sampler:
        batch = next(sampler)
    counts = np.array([100, 50])[batch.tables]
    weights = (counts * batch.probabilities) ** -0.7
    largest = weights.max() if norm == "batch" else (100 * 1 / 5050) ** -0.7
    np.testing.assert_allclose(batch.weights, weights / largest, rtol=1e-6)
    np.testing.assert_array_equal(batch.parts[names[1]].weights, batch.weights[64:])
    assert batch.weights.dtype == np.float32


def test_rows_of_uniform_tables_and_queues_all_have_the_weight_one(client: ReplayClient, new_table: NewTable) -> None:
    tables = [new_table(backend=backend) for backend in ("uniform", "fifo", "uniform")]
    for table, count in zip(tables, (7, 100, 13), strict=True):
        table.insert(rows(range(count)))
    with client.mixed_sampler({table.name: 4 for table in tables}, beta=0.5, prefetch=2) as sampler:
        batch = next(sampler)
    assert batch.weights.tolist() == [1.0] * 12
    assert batch["number"][4:8].tolist() == [0, 1, 2, 3]


def test_weights_of_very_improbable_rows_are_finite(client: ReplayClient, new_table: NewTable) -> None:
    tables = [new_table(alpha=1.0, epsilon=0.0), new_table(alpha=1.0, epsilon=0.0)]
    tables[0].insert(rows([0, 1]), priorities=[1e-300, 1.0])
    tables[1].insert(rows([0, 1]), priorities=[1.0, 1.0])
    sizes = {table.name: 2 for table in tables}
    with client.mixed_sampler(sizes, beta=2.0, weight_norm="table") as sampler:
        weights = next(sampler).weights
    assert np.isfinite(weights).all()
    assert (weights >= 0).all()


def test_options_hold_for_all_tables(client: ReplayClient, names: list[str]) -> None:
    with client.mixed_sampler(dict.fromkeys(names, 4), beta=0.1, prefetch=1) as sampler:
        assert next(sampler).beta == sampler.beta == 0.1
        sampler.beta, sampler.prefetch = 0.9, 5
        assert (sampler.beta, sampler.prefetch) == (0.9, 5)
        batch = next(sampler)
        assert batch.beta == 0.9
        assert [part.beta for part in batch.parts.values()] == [0.9, 0.9]
        assert sampler.in_flight == 4
        assert all(name in repr(sampler) for name in names)


def test_some_rows_of_a_batch_are_updated_by_table_and_key(
    client: ReplayClient, tables: dict[str, Table], names: list[str]
) -> None:
    with client.mixed_sampler(dict.fromkeys(names, 8), beta=0.4, prefetch=1) as sampler:
        batch = next(sampler)
        demo_only = batch.tables == 1
        sampler.update_priorities(MixedKeys(batch.tables[demo_only], batch.row_keys[demo_only]), np.full(8, 7.0))
        sampler.samplers[names[0]].update_priorities(batch.parts[names[0]], np.full(8, 3.0))
    online, demo = tables.values()
    assert (online.read(batch.parts[names[0]]).priorities == 3.0).all()
    assert (demo.read(batch.parts[names[1]]).priorities == 7.0).all()


def test_keys_without_their_tables_are_refused(
    client: ReplayClient, tables: dict[str, Table], names: list[str]
) -> None:
    online, demo = tables.values()
    with (
        client.mixed_sampler(dict.fromkeys(names, 4), beta=0.4) as sampler,
        client.mixed_sampler({names[0]: 4}, beta=0.4) as other,
        client.mixed_sampler(dict.fromkeys(names, 4), beta=0.4, device="cpu") as tensors,
    ):
        batch = next(sampler)
        for wrong in (batch.row_keys, batch.parts[names[0]], next(other), online.sample(4, beta=0.4), [1, 2]):
            for each in (sampler, tensors):
                with pytest.raises(InvalidArgumentError, match="a batch of this sampler, of the tables"):
                    each.update_priorities(wrong, np.ones(4))  # type: ignore[arg-type]
        for numbers, match in (([0, 2], "0 to 2"), ([-1, 0], "-1 to 0"), ([0, 0, 0], r"int64\[2\]")):
            with pytest.raises(InvalidArgumentError, match=match):
                sampler.update_priorities(MixedKeys(np.array(numbers), np.array([1, 2])), np.ones(2))
        with pytest.raises(InvalidArgumentError, match="priorities"):
            sampler.update_priorities(batch, np.ones(7))
        for single in (online, online.sampler(4, beta=0.4)):
            with pytest.raises(InvalidArgumentError, match=r"batch\.parts\['demo'\]"):
                single.update_priorities(batch, np.ones(8))
        with pytest.raises(InvalidArgumentError, match=r"batch\.parts\['demo'\]"):
            demo.read(batch)
        assert sampler.unacknowledged == 0


@pytest.mark.parametrize("wait_s", [0.0, 0.05])
def test_a_table_without_rows_is_named_and_what_the_others_drew_is_kept(
    client: ReplayClient, new_table: NewTable, wait_s: float
) -> None:
    full, empty = new_table(backend="fifo"), new_table(backend="uniform")
    full.insert(rows(range(8)))
    error = DeadlineExceededError if wait_s else TableEmptyError
    with client.mixed_sampler({full.name: 4, empty.name: 2}, prefetch=1, timeout_s=wait_s) as sampler:
        for _ in range(3):
            with pytest.raises(error) as refused:
                next(sampler)
            assert refused.value.metadata["table"] == empty.name
        empty.insert(rows(range(5)))
        for first in (0, 4):
            batch = next(sampler)
            assert batch["number"][:4].tolist() == list(range(first, first + 4))
            assert_whole(batch)


def test_a_sampler_waits_for_every_table(client: ReplayClient, new_table: NewTable) -> None:
    first, second = new_table(backend="uniform", min_size=3), new_table(backend="uniform")
    second.insert(rows(range(5)))
    first.insert(rows([1, 2]))
    sizes = {first.name: 2, second.name: 2}
    with client.mixed_sampler(sizes, timeout_s=60.0) as sampler, ThreadPoolExecutor(1) as pool:
        batch = pool.submit(next, sampler)
        wait_until(lambda: first.stats().waiting > 0, "the draw waits")
        first.insert(rows([3]))
        assert_whole(batch.result())


@wire_only
@pytest.mark.parametrize(
    ("sizes", "field", "expected"),
    [
        ({}, "batch_sizes", "the number of rows from each table"),
        (256, "batch_sizes", "the number of rows from each table"),
        ({"online": 0}, "batch_sizes.online", "a whole number"),
        ({"online": 1.5}, "batch_sizes.online", "a whole number"),
    ],
)
def test_wrong_numbers_of_rows_are_refused_by_name(client: ReplayClient, sizes: Any, field: str, expected: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        client.mixed_sampler(sizes)
    assert refused.value.metadata["field"] == field
    assert expected in refused.value.metadata["expected"]


@wire_only
def test_other_wrong_arguments_are_refused(client: ReplayClient, names: list[str]) -> None:
    sizes = dict.fromkeys(names, 2)
    with pytest.raises(TableNotFoundError):
        client.mixed_sampler({names[0]: 2, "nowhere": 2}, beta=0.4)
    for options, field in (
        ({"beta": -1.0}, "beta"),
        ({"beta": 0.4, "prefetch": 0}, "prefetch"),
        ({"beta": 0.4, "weight_norm": "all"}, "weight_norm"),
        ({"beta": 0.4, "columns": ["obz"]}, "columns"),
    ):
        with pytest.raises(InvalidArgumentError) as refused:
            client.mixed_sampler(sizes, **options)
        assert refused.value.metadata["field"] == field


@wire_only
def test_an_error_about_columns_suggests_none_whose_masks_differ(client: ReplayClient, new_table: NewTable) -> None:
    action, goal = Column("int64"), Column("float32", optional=True)
    online = new_table(columns={"action": action, "goal": goal})
    demo = new_table(columns={"action": action, "goal": Column("float32")})
    with pytest.raises(InvalidArgumentError, match=r"columns=\['action'\], got 'goal_present'"):
        client.mixed_sampler({online.name: 2, demo.name: 2}, beta=0.4)


@wire_only
def test_columns_have_to_be_the_same_in_all_tables(client: ReplayClient, new_table: NewTable) -> None:
    obs, action = Column("float32", 3), Column("int64")
    online = new_table(columns={"obs": obs, "action": action, "step": Column("int32")}, backend="uniform")
    demo = new_table(columns={"action": action, "step": Column("int64"), "obs": obs, "expert": Column("bool")})
    sizes = {online.name: 2, demo.name: 2}
    for columns in (None, ["step", "expert", "obs"]):
        with pytest.raises(InvalidArgumentError) as refused:
            client.mixed_sampler(sizes, beta=0.4, columns=columns)
        assert refused.value.metadata == {
            "field": "columns",
            "expected": "columns that all tables have, with the same dtype and shape: columns=['obs', 'action']",
            "got": f"'step': int32 in '{online.name}', int64 in '{demo.name}'; "
            f"'expert': absent in '{online.name}', bool in '{demo.name}'",
        }
    online.insert({"obs": np.ones((4, 3)), "action": [1] * 4, "step": [0] * 4})
    demo.insert({"obs": np.full((4, 3), 2.0), "action": [2] * 4, "step": [0] * 4, "expert": [True] * 4})
    with client.mixed_sampler(sizes, beta=0.4, columns=["action", "obs"]) as sampler:
        batch = next(sampler)
        assert list(batch) == ["obs", "action"]
        assert batch["action"].tolist() == [1, 1, 2, 2]
        assert batch["obs"][:, 0].tolist() == [1.0, 1.0, 2.0, 2.0]


def test_tables_of_steps_are_mixed_with_plain_ones(client: ReplayClient, new_table: NewTable) -> None:
    sequences = Sequences(3, period=3)
    steps = new_table(columns={"x": Column("int64"), "held": Mask()}, steps=sequences, backend="uniform")
    plain = new_table(columns={"held": Column("bool", 3), "x": Column("int64", 3)}, backend="uniform")
    with steps.writer() as writer:
        for step in range(7):
            writer.append(x=step)
    plain.insert({"x": [[7, 8, 9]], "held": [[True, True, False]]})
    with client.mixed_sampler({steps.name: 5, plain.name: 2}) as sampler:
        batch = next(sampler)
        assert list(batch) == ["x", "held"]
        assert batch["x"][5:].tolist() == [[7, 8, 9]] * 2
        assert {tuple(each) for each in batch["x"][:5].tolist()} <= {(0, 1, 2), (3, 4, 5)}
    for columns, expected in ((["x"], ["x", "held"]), ([], ["held"])):  # a mask is always drawn
        with client.mixed_sampler({steps.name: 5, plain.name: 2}, columns=columns) as sampler:
            assert list(next(sampler)) == expected


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")),
    ],
)
def test_tensors_are_mixed_too(client: ReplayClient, tables: dict[str, Table], names: list[str], device: str) -> None:
    with client.mixed_sampler({names[0]: 6, names[1]: 2}, beta=0.4, device=device) as sampler:
        assert isinstance(sampler, MixedTensorSampler)
        for batch in islice(sampler, 5):
            assert isinstance(batch, MixedTensorBatch)
            assert_whole({name: column.cpu().numpy() for name, column in batch.items()})
            np.testing.assert_array_equal(batch["number"].cpu().numpy(), numbers_of(batch))
            demo = batch.parts[names[1]]
            assert demo["obs"].data_ptr() == batch["obs"][6:].data_ptr()
            assert torch.equal(demo.weights, batch.weights[6:])
            sampler.update_priorities(batch, torch.as_tensor(batch.tables, device=device) + 5.0)
    for number, table in enumerate(tables.values()):
        assert (table.read(batch.parts[table.name]).priorities == number + 5.0).all()


def test_a_closed_sampler_is_closed_for_all_tables(client: ReplayClient, names: list[str]) -> None:
    sampler = client.mixed_sampler(dict.fromkeys(names, 4), beta=0.4)
    sampler.update_priorities(next(sampler), np.ones(8))
    sampler.close()
    sampler.close()
    assert sampler.updated > 0
    with pytest.raises(ClosedError):
        next(sampler)
    left = client.mixed_sampler(dict.fromkeys(names, 4), beta=0.4)
    with pytest.raises(ZeroDivisionError), left:
        1 / (next(left).batch_size - 8)
    refused = client.mixed_sampler(dict.fromkeys(names, 4), beta=0.4)
    with pytest.raises(InvalidArgumentError, match="timeout_s"):
        refused.close(timeout_s=-1)
    for each in (*left.samplers.values(), *refused.samplers.values()):
        with pytest.raises(ClosedError):
            next(each)


@pytest.fixture
def near(server: ServerProcess, tables: dict[str, Table]) -> Iterator[ReplayClient]:
    """A client that copies rows itself."""
    with ReplayClient(server.address) as made:
        yield made


@wire_only
def test_rows_that_were_overwritten_before_they_were_copied_are_drawn_again(
    near: ReplayClient, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One table's parts are replaced, so they are copied into their places; later parts are copied directly again."""
    gather, calls = MappedRows.gather, 0
    joined, copied = JoinedBuffers.joined, 0

    def overtaken(mapped: MappedRows, keys: Any, columns: Any) -> bool:
        nonlocal calls
        calls += 1
        for column in columns.values():
            column[:] = 0
        return calls % 5 != 0 and gather(mapped, keys, columns)

    def counted(buffers: JoinedBuffers, parts: Any) -> Any:
        nonlocal copied
        whole = joined(buffers, parts)
        copied += any(getattr(part, "whole", None) is not whole for part in parts)
        return whole

    monkeypatch.setattr(MappedRows, "gather", overtaken)
    monkeypatch.setattr(JoinedBuffers, "joined", counted)
    with near.mixed_sampler({names[0]: 6, names[1]: 2}, beta=0.4) as sampler:
        for batch in islice(sampler, 40):
            check(batch, names, [6, 2])
    assert calls >= 80
    assert 0 < copied <= 1 + calls // 5


def test_a_restarted_server_goes_on_with_all_tables_and_their_masks(
    start_server: Callable[..., ServerProcess], connect: Callable[..., ReplayClient], tmp_path: Path
) -> None:
    server = start_server("--data-dir", str(tmp_path / "data"))
    client = connect(server)
    columns = {"x": Column("int64"), "goal": Column("float32", optional=True)}
    tables = [client.create_table(name, columns=columns, capacity=100) for name in ("online", "demo")]
    tables[0].insert({"x": range(10)})
    tables[1].insert({"x": range(10), "goal": np.arange(1, 11)})
    with client.mixed_sampler({"online": 6, "demo": 2}, beta=0.4) as sampler:
        for number, batch in enumerate(islice(sampler, 20)):
            if number == 10:
                server.kill()
                server.restart()
            assert batch["goal_present"].tolist() == [False] * 6 + [True] * 2
            np.testing.assert_array_equal(batch["goal"], np.where(batch.tables == 0, 0, batch["x"] + 1))
            sampler.update_priorities(batch, 1.0 + batch.tables)
    assert tables[0].describe().schema.masks == {"goal": "goal_present"}
    assert (tables[1].read(batch.parts["demo"]).priorities == 2.0).all()


def test_a_sampler_is_not_pickled(client: ReplayClient, names: list[str]) -> None:
    sampler: MixedSampler = client.mixed_sampler({names[0]: 2}, beta=0.4)
    with pytest.raises(TypeError, match="create a sampler there"):
        pickle.dumps(sampler)
