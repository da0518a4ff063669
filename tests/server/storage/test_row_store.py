"""The rings of rows, compared with plain arrays by key."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from replay_proto.schema import Column, Schema
from replay_server.storage.row_store import RowStore

from tests.support.step_oracle import plain_run

SCHEMA = Schema(
    {
        "flag": Column("bool"),
        "small": Column("int8", (3,)),
        "half": Column("float16", (2, 2)),
        "wide": Column("float64"),
        "frame": Column("uint8", (2, 3, 4)),
    }
)


def random_columns(random: np.random.Generator, count: int) -> dict[str, NDArray[np.generic]]:
    """Rows with columns of every kind, with random bytes if the dtype allows."""
    return {
        name: random.integers(0, 2, (count, *column.shape)).astype(column.dtype)
        if column.dtype == np.bool_
        else random.integers(-100 if column.dtype.kind == "i" else 0, 100, (count, *column.shape)).astype(column.dtype)
        for name, column in SCHEMA.items()
    }


def gathered(store: RowStore, keys: NDArray[np.int64]) -> dict[str, NDArray[np.generic]]:
    """Rows by key."""
    out = {name: np.zeros((len(keys), *column.shape), column.dtype) for name, column in SCHEMA.items()}
    store.gather(keys, out)
    return out


@settings(max_examples=40)
@given(slots=st.integers(1, 40), counts=st.lists(st.integers(1, 40), min_size=1, max_size=12), seed=st.integers(0, 99))
def test_the_last_rows_of_every_slot_come_back(slots: int, counts: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        store = RowStore(Path(folder), SCHEMA, slots, create=True)
        rows: dict[int, tuple[dict[str, NDArray[np.generic]], int, tuple[int, int]]] = {}
        inserted = 0
        for number, count in enumerate(min(count, slots) for count in counts):
            columns = random_columns(random, count)
            store.reserve(inserted, count)
            store.write(inserted, columns, plain_run(count, number, 2**64 - 1 - number).links())
            rows |= {inserted + place: (columns, place, (number, 2**64 - 1 - number)) for place in range(count)}
            inserted += count
        for again in (False, True):
            if again:
                store.close()
                store = RowStore(Path(folder), SCHEMA, slots, create=False)
            keys = random.permutation(np.arange(max(0, inserted - slots), inserted))
            out = gathered(store, keys)
            for index, key in enumerate(keys.tolist()):
                columns, place, link = rows[key]
                for name in SCHEMA:
                    assert np.array_equal(out[name][index], columns[name][place])
                assert tuple(store.links(keys)[index].tolist()) == link
        store.close()


def test_some_columns_can_be_gathered_alone(tmp_path: Path) -> None:
    store = RowStore(tmp_path, SCHEMA, 10, create=True)
    columns = random_columns(np.random.default_rng(0), 10)
    store.reserve(0, 10)
    store.write(0, columns, plain_run(10).links())
    out = {"wide": np.zeros(3, np.float64)}
    store.gather(np.array([7, 0, 7]), out)
    assert np.array_equal(out["wide"], columns["wide"][[7, 0, 7]])
    store.close()


def test_every_column_has_a_file_of_its_size(tmp_path: Path) -> None:
    store = RowStore(tmp_path, SCHEMA, 13, create=True)
    store.close()
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes == {
        **{f"column-{index:03d}.bin": 13 * column.row_bytes for index, column in enumerate(SCHEMA.values())},
        "column-005.bin": 13 * 16,
    }


def test_space_is_reserved_with_the_rows(tmp_path: Path) -> None:
    schema = Schema({"frame": Column("uint8", (1 << 20,))})
    store = RowStore(tmp_path, schema, 100, create=True)
    assert store.reserved_bytes == 0
    store.reserve(0, 10)
    first = store.reserved_bytes
    assert 10 << 20 <= first <= 20 << 20
    store.reserve(0, 10)
    assert store.reserved_bytes == first
    store.reserve(90, 50)
    assert store.reserved_bytes == 100 * ((1 << 20) + 16)
    store.close()


def test_parts_join_to_the_values_of_a_column(tmp_path: Path) -> None:
    schema = Schema({"short": Column("float32", (3,)), "long": Column("uint8", (5000,)), "flag": Column("bool")})
    store = RowStore(tmp_path, schema, 10, create=True)
    random = np.random.default_rng(0)
    columns = {
        name: random.integers(0, 100, (10, *column.shape)).astype(column.dtype) for name, column in schema.items()
    }
    store.reserve(0, 10)
    store.write(0, columns, plain_run(10).links())
    keys = np.array([7, 0, 7, 13])
    for name, values in columns.items():
        assert b"".join(store.parts(keys, name)) == values[keys % 10].tobytes()
