"""Rows and calls by a shortcut are those of the server that the client talks to, whatever has become of its files."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from replay_client import Column, ReplayClient, Table, aio
from replay_client._transport.frame_stream import DirectFrames
from replay_client.results.description import TableDescription
from replay_proto.owner import OWNER_FILE, read_owner

from tests.support.bind_mounts import bound
from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]
COLUMNS = {"x": Column("float32")}
ROWS = 64


@pytest.fixture
def server(start_server: StartServer, tmp_path: Path) -> ServerProcess:
    """A server with durable tables."""
    return start_server("--data-dir", str(tmp_path / "first"))


@pytest.fixture
def client(server: ServerProcess) -> Iterator[ReplayClient]:
    """A client that runs on while its server is replaced."""
    with ReplayClient(server.address, timeout_s=60) as made:
        yield made


def filled(client: ReplayClient, value: float) -> Table:
    """The table, with rows that all have this value."""
    table = client.create_table("t", columns=COLUMNS, capacity=ROWS, backend="uniform", if_exists="open")
    table.insert({"x": np.full(ROWS, value, np.float32)})
    return table


def replaced(server: ServerProcess, start_server: StartServer, tmp_path: Path) -> ServerProcess:
    """A server on a copy of the directory, at the address of the first one, which has ended; all its rows are 2.0."""
    server.terminate()
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    second = start_server("--data-dir", str(tmp_path / "second"), port=server.port)
    with ReplayClient(second.address, same_host=False) as other:
        filled(other, 2.0)
    return second


def values(table: Table) -> set[float]:
    """The values of drawn rows."""
    return set(table.sample(4 * ROWS)["x"].tolist())


def test_a_client_draws_the_rows_of_a_server_that_took_over_on_a_copy(
    server: ServerProcess, client: ReplayClient, start_server: StartServer, tmp_path: Path
) -> None:
    table = filled(client, 1.0)
    with table.sampler(ROWS, prefetch=2) as sampler:
        assert set(next(sampler)["x"].tolist()) == values(table) == {1.0}
        assert table.stats().sampled_same_host > 0
        replaced(server, start_server, tmp_path)
        for _ in range(2):  # they may have arrived before the first server ended
            next(sampler)
        for _ in range(5):
            assert values(table) == set(next(sampler)["x"].tolist()) == {2.0}
    assert table.stats().sampled_same_host > 0, "the files of the copy were found"


def test_what_is_published_is_copied_from_no_files_of_another_server(
    server: ServerProcess, client: ReplayClient, start_server: StartServer, tmp_path: Path
) -> None:
    """Both servers have a publication of the same version."""

    def publish(value: float, where: ReplayClient) -> int:
        return where.publish("w", {"w": np.full(100_000, value)})

    publish(1.0, client)
    assert set(client.latest("w").values["w"].tolist()) == {1.0}
    second = replaced(server, start_server, tmp_path)
    other = start_server("--data-dir", str(tmp_path / "first"))
    with ReplayClient(second.address) as mine, ReplayClient(other.address) as strangers:
        assert publish(2.0, mine) == publish(3.0, strangers) == 2
    for _ in range(3):
        version, state = client.latest("w")
        assert (version, set(state["w"].tolist())) == (2, {2.0})


def test_a_client_of_asyncio_draws_them_too(server: ServerProcess, start_server: StartServer, tmp_path: Path) -> None:
    async def run() -> None:
        async with aio.ReplayClient(server.address, timeout_s=60) as client:
            table = await client.create_table("t", columns=COLUMNS, capacity=ROWS, backend="uniform")
            await table.insert({"x": np.full(ROWS, 1.0, np.float32)})
            async with table.sampler(ROWS, prefetch=2) as sampler:
                assert set((await anext(sampler))["x"].tolist()) == {1.0}
                await asyncio.to_thread(replaced, server, start_server, tmp_path)
                for _ in range(2):  # they may have arrived before the first server ended
                    await anext(sampler)
                for _ in range(5):
                    assert set((await anext(sampler))["x"].tolist()) == {2.0}
                    assert set((await table.sample(ROWS))["x"].tolist()) == {2.0}
            assert (await table.stats()).sampled_same_host > 0

    asyncio.run(run())


def test_no_call_reaches_another_server_that_has_taken_the_directory(
    server: ServerProcess, client: ReplayClient, start_server: StartServer, tmp_path: Path
) -> None:
    """The client's server runs on a copy now, and another one, at another address, where it ran before."""
    table = filled(client, 1.0)
    assert values(table) == {1.0}
    replaced(server, start_server, tmp_path)
    other = start_server("--data-dir", str(tmp_path / "first"))
    with ReplayClient(other.address, same_host=False) as strangers:
        theirs = filled(strangers, 3.0)
        for _ in range(5):
            assert values(table) == {2.0}
        table.update_priorities(table.sample(4).row_keys, np.ones(4))
        with table.writer(streams=1) as writer:
            writer.append(x=2.0)
        before = theirs.stats()
        assert (before.sampled, before.table.inserted) == (0, 2 * ROWS)
        assert table.describe().inserted == 2 * ROWS + 1


def test_after_a_restart_rows_are_copied_and_streams_are_local_again(
    server: ServerProcess, client: ReplayClient
) -> None:
    table = filled(client, 1.0)
    with table.sampler(ROWS) as sampler, table.writer(streams=1) as writer:
        next(sampler)
        writer.append(x=1.0)
        writer.flush()
        server.kill()
        server.restart()
        for _ in range(20):
            next(sampler)
            writer.append(x=1.0)
            writer.flush()
        assert isinstance(sampler._stream._stream, DirectFrames)
        copied = table.stats().sampled_same_host
        next(sampler)
        assert table.stats().sampled_same_host > copied


def test_a_pickled_table_of_an_earlier_run_finds_the_new_server(server: ServerProcess, client: ReplayClient) -> None:
    table = filled(client, 1.0)
    link, description = table._session, table._description
    server.terminate()
    server.restart()
    again = Table(link, description)
    assert values(again) == {1.0}
    assert again.stats().sampled_same_host == 4 * ROWS


def test_a_directory_seen_through_another_mount_is_not_mapped(start_server: StartServer, tmp_path: Path) -> None:
    """As on another node: the files can be read there, but what the server writes is not seen at once."""
    data, seen = tmp_path / "data", tmp_path / "seen"
    data.mkdir()
    with bound(data, seen):
        server = start_server("--data-dir", str(data))
        assert read_owner(seen).record == read_owner(data).record
        with ReplayClient(server.address) as client:
            table = filled(client, 1.0)
            description = table.describe()
            far = link_to(table, description, seen)
            assert values(far) == {1.0}
            assert far.stats().sampled_same_host == 0
            assert far._data_path.near.mapped is None
            assert far._data_path.open_stream("Sample") is None


def link_to(table: Table, description: TableDescription, seen: Path) -> Table:
    """The table of a client to which the server's directory is at another place."""
    root = seen / "tables"
    moved = replace(description, directory=str(root / description.name), socket=str(root / ".socket"))
    return Table(table._session, moved)


def test_a_socket_of_another_server_next_to_the_right_record_proves_nothing(
    server: ServerProcess, client: ReplayClient, start_server: StartServer, tmp_path: Path
) -> None:
    """The ids are compared by both sides."""
    table = filled(client, 1.0)
    other = start_server("--data-dir", str(tmp_path / "other"))
    with ReplayClient(other.address) as strangers:
        socket = filled(strangers, 3.0).describe().socket
    Path(table.describe().socket).unlink()
    Path(table.describe().socket).symlink_to(socket)
    again = Table(table._session, table.describe())
    assert values(again) == {1.0}
    assert again._data_path.near.mapped is None
    wait_until(lambda: again.stats().sampled == 4 * ROWS, "it was drawn over gRPC")
    assert (tmp_path / "first" / OWNER_FILE).exists()
