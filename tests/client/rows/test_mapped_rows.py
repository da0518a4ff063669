"""Rows copied from the server's files: complete or not at all, and owned by the caller."""

from __future__ import annotations

import os
import threading
from collections import UserDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from replay_client import Column, ReplayClient, Table
from replay_client._learning.answers import BatchReader
from replay_client._operations.server import describe
from replay_client._rows.buffers import ColumnBuffers
from replay_client._rows.mapped_rows import MappedRows
from replay_client._transport.data_path import DataPath
from replay_proto.layout import HEADER_FILE, HEADER_WORDS, WRITE_HORIZON, column_file
from replay_proto.owner import OWNER_FILE

from tests.client.numbered import assert_whole, rows
from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess

NewTable = Callable[..., Table]
CAPACITY = 100
NOBODY = 65534
"""Id of a user who owns no files."""


@pytest.fixture
def client(server: ServerProcess) -> ReplayClient:  # type: ignore[misc]
    """A client on the server's host."""
    with ReplayClient(server.address) as made:
        yield made


@pytest.fixture
def near(new_table: NewTable) -> Table:
    """A table with some evicted rows."""
    table = new_table(capacity=CAPACITY)
    table.insert(rows(range(250)))
    return table


def mapped(table: Table) -> MappedRows:
    table._data_path.renew()
    found = table._data_path.near.mapped
    assert found is not None
    return found


def reader(table: Table) -> BatchReader:
    """The reader of batches with all columns."""
    return table._operations.batch_reader(None)


def free_buffers(table: Table) -> list[object]:
    """Buffers that the reader keeps."""
    pool = reader(table)._plain.blank.__self__._buffers  # type: ignore[attr-defined]
    pool._take_back()
    return pool._free  # type: ignore[no-any-return]


def gather(table: Table, keys: NDArray[np.int64]) -> dict[str, np.ndarray] | None:
    """Copy rows by key; None if they were overwritten."""
    return reader(table)._plain.copied(keys, mapped(table))


def test_rows_are_those_of_their_keys_in_any_order_and_as_often(near: Table) -> None:
    keys = np.array([150, 249, 200, 150, 151])
    columns = gather(near, keys)
    assert columns is not None
    assert columns["number"].tolist() == keys.tolist()
    assert_whole(columns)


def test_columns_of_every_dtype_and_shape_are_copied(new_table: NewTable) -> None:
    dtypes = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32")
    table = new_table(columns={f"{name}/{n}": Column(name, (n, 2)) for name in dtypes for n in (1, 3)})
    given = {
        name: np.arange(5 * column.shape[0] * 2).reshape(5, *column.shape).astype(column.dtype)
        for name, column in table.schema.items()
    }
    keys = table.insert(given)
    columns = gather(table, keys[::-1].copy())
    assert columns is not None
    for name, column in table.schema.items():
        assert (columns[name].dtype, columns[name].flags.aligned) == (column.dtype, True)
        np.testing.assert_array_equal(columns[name], given[name][::-1])


def test_a_row_that_is_being_overwritten_is_not_returned(near: Table) -> None:
    slots = near.slots
    assert gather(near, np.array([250 - slots])) is not None, "its slot was not reached yet"
    assert gather(near, np.array([249, 249 - slots])) is None
    near.insert(rows([250]))
    assert gather(near, np.array([250 - slots])) is None


def test_the_horizon_is_looked_at_after_the_copy(near: Table, tmp_path: Path) -> None:
    """An insert starts while rows are copied: here, the header shows it from the middle of the copy on."""
    described = near.describe()
    for name in (HEADER_FILE, *(column_file(index) for index in range(len(near.schema)))):
        (tmp_path / name).write_bytes((Path(described.directory) / name).read_bytes())
    copies = MappedRows(replace(described, directory=str(tmp_path)))
    header = np.memmap(tmp_path / HEADER_FILE, "<i8", "r+", shape=(HEADER_WORDS,))
    keys = np.arange(150, 250)

    class InsertBegins(UserDict[str, np.ndarray]):
        def __iter__(self) -> Iterator[str]:
            header[WRITE_HORIZON] = 150 + near.slots + 1
            return super().__iter__()

    columns = ColumnBuffers(near.schema).blank(100)
    assert copies.gather(keys, columns)
    assert not copies.gather(keys, InsertBegins(columns))
    assert copies.gather(keys + 1, columns)


def test_batches_are_whole_while_the_ring_is_overwritten_without_pause(
    new_table: NewTable, server: ServerProcess
) -> None:
    """Batches whose copy was overwritten are requested again over gRPC; no row is torn, and statistics count them."""
    table = new_table(capacity=64)
    table.insert(rows(range(64)))
    stop = threading.Event()

    def insert_without_pause() -> None:
        with ReplayClient(server.address) as other:
            mine, first = other.table(table.name), 64
            while not stop.is_set():
                mine.insert(rows(range(first, first + 64)))
                first += 64

    inserting = threading.Thread(target=insert_without_pause)
    inserting.start()
    try:
        with table.sampler(500, beta=0.4, prefetch=8) as sampler:

            def draw() -> bool:
                for batch in (next(sampler), table.sample(50, beta=0.4)):
                    assert_whole(batch.columns)
                    assert batch["number"].tolist() == batch.row_keys.tolist()
                return table.stats().overtaken > 0

            for _ in range(300):
                draw()
            wait_until(draw, "a batch was overtaken: else, this test shows nothing")
    finally:
        stop.set()
        inserting.join()
    stats = table.stats()
    assert stats.sampled == stats.sampled_same_host > 0


def test_a_batch_is_the_callers_and_its_memory_is_used_again_only_after_it(near: Table) -> None:
    keys = np.arange(150, 160)
    kept = [gather(near, keys + step) for step in range(5)]
    for step, columns in enumerate(kept):
        assert columns is not None
        assert columns["number"].tolist() == (keys + step).tolist()
        columns["number"][:] = -1
    addresses = {_address(columns) for columns in kept if columns is not None}
    assert len(addresses) == 5
    del kept, columns
    again = gather(near, keys)
    assert again is not None
    assert _address(again) in addresses
    assert_whole(again)


def _address(columns: dict[str, np.ndarray]) -> int:
    address: int = columns["number"].__array_interface__["data"][0]
    return address


def test_a_part_of_a_column_keeps_the_memory(near: Table) -> None:
    parts = []
    for step in range(60):
        columns = gather(near, np.arange(150, 160) + step % 50)
        assert columns is not None
        parts.append(columns["obs"][2:4, 1])
    del columns
    for step, part in enumerate(parts):
        assert part.tolist() == [152.0 + step % 50, 153.0 + step % 50]


def test_only_so_many_buffers_are_kept(near: Table) -> None:
    kept = [gather(near, np.arange(150, 151 + size % 40)) for size in range(100)]
    assert all(columns is not None for columns in kept)
    kept.clear()
    assert len(free_buffers(near)) == 32

    def take(size: int) -> None:
        assert gather(near, np.arange(150, 151 + size % 90)) is not None

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(take, range(2000)))
    assert 0 < len(free_buffers(near)) <= 32


# When it is not possible.


def test_files_that_are_not_as_described_are_not_used(near: Table, tmp_path: Path) -> None:
    described = near.describe()
    with pytest.raises(OSError, match=r"header.bin"):
        MappedRows(replace(described, directory=str(tmp_path)))
    (tmp_path / HEADER_FILE).write_bytes(bytes(8 * HEADER_WORDS))
    (tmp_path / column_file(0)).write_bytes(bytes(8))
    with pytest.raises(OSError, match=r"is not of"):
        MappedRows(replace(described, directory=str(tmp_path)))


def path_to(near: Table, directory: Path | str) -> DataPath:
    """What a client finds out if the server describes another directory."""
    path = near._session.data_path(replace(near.describe(), directory=str(directory)), partial(describe, near.name))
    path.renew()
    return path


def is_near(path: DataPath) -> bool:
    return path.near.mapped is not None or path.address is not None


def folder_with(tmp_path: Path, record: bytes | None) -> Path:
    """Where a table's directory would be, below one with this owner record."""
    if record is not None:
        (tmp_path / OWNER_FILE).write_bytes(record)
    folder = tmp_path / "tables" / "t"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("record", [None, b"", b"short", b"{}" * 512])
def test_without_an_owner_record_there_is_no_short_way(near: Table, tmp_path: Path, record: bytes | None) -> None:
    assert is_near(path_to(near, near.describe().directory))
    assert not is_near(path_to(near, folder_with(tmp_path, record)))
    assert not is_near(path_to(near, ""))
    assert not is_near(path_to(near, "/"))


def test_a_copy_of_the_directory_is_no_short_way(near: Table, tmp_path: Path) -> None:
    """Its record names the server that runs, but it is not where that server wrote it."""
    root = Path(near.describe().directory).parents[1]
    assert not is_near(path_to(near, folder_with(tmp_path, (root / OWNER_FILE).read_bytes())))


@contextmanager
def nobody() -> Iterator[None]:
    """Run as a user other than root, because root may read everything."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


def test_a_directory_that_may_not_be_read_is_left_alone(near: Table, tmp_path: Path) -> None:
    description = near.describe()
    folder = folder_with(tmp_path, (Path(description.directory).parents[1] / OWNER_FILE).read_bytes())
    tmp_path.chmod(0)
    with nobody():
        with pytest.raises(PermissionError):
            (tmp_path / OWNER_FILE).read_bytes()
        path = near._session.data_path(replace(description, directory=str(folder)), partial(describe, near.name))
        path.renew()
        assert not is_near(path)
    tmp_path.chmod(0o700)


def test_on_a_machine_of_another_memory_order_rows_travel_and_calls_take_the_socket(
    near: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    found = path_to(near, near.describe().directory)
    assert found.near.mapped is None
    assert found.calls is not None
    before = near.stats().sampled_same_host
    table = Table(near._session, near.describe(), data_path=found)
    assert_whole(table.sample(20, beta=0.4).columns)
    with table.sampler(20_000, beta=0.4) as sampler:
        for _ in range(5):
            batch = next(sampler)
            assert_whole(batch.columns)
            sampler.update_priorities(np.repeat(batch.row_keys, 5), np.ones(100_000))
    assert near.stats().sampled_same_host == before
    found.calls.close()
