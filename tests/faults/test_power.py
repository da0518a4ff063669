"""Power losses, simulated by a different boot id and by pages missing on disk."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from replay_proto.owner import OWNER_FILE
from replay_proto.steps import Item
from replay_proto.v1 import replay_pb2
from replay_server.rpc.local_socket.listener import SOCKET_NAME
from replay_server.storage.runs import GOES_ON

from tests.support.caller import SAME_HOST, CalledTable, Caller, window_shape
from tests.support.deadlines import wait_until
from tests.support.power import damage_page, pretend_another_boot
from tests.support.server_process import ServerProcess, run_to_its_end
from tests.support.step_audit import drawable_keys
from tests.support.wire_runs import step_runs
from tools.faults.torture import ITEM
from tools.faults.workers import CallWriter, StreamWriter, Writer

StartServer = Callable[..., ServerProcess]
POWER = ("--durability", "power", "--sync-every", "0.1")
VERIFIED = "are valid after a power loss"
ROWS = 3000
"""Inserted before the machine goes down."""
CAPACITY = 30_000
"""Several times the rows inserted between syncs, or during a copy of the files on a busy machine."""


def load(server: ServerProcess, name: str, writers: list[Writer], then: Callable[[], object]) -> None:
    """Let writers insert while ``then`` runs, then kill the server."""
    with ExitStack() as stack:
        callers = [stack.enter_context(Caller(server.address)) for _ in writers]
        threads = stack.enter_context(ThreadPoolExecutor(len(writers)))
        running = [
            threads.submit(writer.run, caller.table(name)) for writer, caller in zip(writers, callers, strict=True)
        ]
        try:
            then()
        finally:
            server.kill()
        for each in running:
            each.result()


def audit(table: CalledTable, writers: list[Writer]) -> dict[int, int]:
    """Check that rows are intact, were sent, are unique, and have no gaps per writer; return values by key."""
    rows = table.read(table.live_keys())
    values = rows.values
    assert len(set(values.tolist())) == len(values)
    assert all(any(writer.was_sent(value) for writer in writers) for value in values.tolist())
    drawn = table.sample(500)
    assert set(drawn.keys.tolist()) <= drawable_keys(table, rows, window_shape(table))
    assert np.isin(drawn.values, values).all()
    return dict(zip(rows.keys.tolist(), values.tolist(), strict=True))


@pytest.mark.parametrize("item", [None, ITEM], ids=["rows", "steps"])
def test_a_server_whose_machine_went_down_serves_whole_rows_only(
    start_server: StartServer, call: Callable[[ServerProcess], Caller], tmp_path: Path, item: Item | None
) -> None:
    seed = 0 if item is None else 1
    data, left = tmp_path / "data", tmp_path / "left"
    checkpoints = ("--checkpoint-dir", str(tmp_path / "checkpoints"))
    server = start_server("--data-dir", str(data), *POWER)
    with Caller(server.address) as caller:
        created = caller.create(capacity=CAPACITY, item=item)
        name, shape = created.name, window_shape(created)
    writers: list[Writer] = [StreamWriter(0, seed, shape), StreamWriter(1, seed, shape), CallWriter(2, seed, shape)]

    live = replay_pb2.TableDescription()

    def copy_while_running() -> None:
        """Copy files one by one during inserts, so they are usually inconsistent."""
        nonlocal live
        with Caller(server.address) as caller:
            table = caller.table(name)
            wait_until(lambda: table.describe().inserted > ROWS, "there are rows")
            live = table.describe()
            shutil.copytree(data, left, ignore=shutil.ignore_patterns(SOCKET_NAME))
            while table.describe().inserted - live.inserted > CAPACITY // 2:  # the copy took too long
                shutil.rmtree(left)
                live = table.describe()
                shutil.copytree(data, left, ignore=shutil.ignore_patterns(SOCKET_NAME))

    load(server, name, writers, copy_while_running)
    pages = random.Random(seed)
    for column in pages.sample(range(4), 2):
        # The newer half of the rows is live in the copy, too.
        key = pages.randrange(live.inserted - live.size // 2, live.inserted)
        path = left / "tables" / name / f"column-{column:03d}.bin"
        damage_page(path, pages, key % live.slots * (path.stat().st_size // live.slots))
    pretend_another_boot(left)
    server = start_server("--data-dir", str(left), *POWER, *checkpoints)
    caller = call(server)
    table = caller.table(name)
    found = audit(table, writers)
    stats = table.stats()
    server.wait_for_log(VERIFIED)
    assert stats.lost > 0
    server.wait_for_log(f"{stats.lost} rows are lost, with the keys")
    oldest = table.describe().inserted - len(found)
    assert list(found) == list(range(oldest, table.describe().inserted)), "there are holes"
    caller.verify(caller.checkpoint(name).name)
    runs = None if item is None else step_runs([(9, 0, 0, 1, GOES_ON)])
    table.insert([5], writer_id=b"new writer, here", sequence=1, runs=runs)
    server.terminate()


def test_another_boot_without_damage_loses_nothing(start_server: StartServer, tmp_path: Path) -> None:
    data = tmp_path / "data"
    server = start_server("--data-dir", str(data), *POWER)
    with Caller(server.address) as caller:
        name = caller.create(capacity=CAPACITY).name
    writers: list[Writer] = [StreamWriter(0, 1), CallWriter(1, 1)]
    for is_other_boot in (False, True, True):
        load(server, name, writers, lambda: time.sleep(0.5))
        if is_other_boot:
            pretend_another_boot(data)
        server.restart()
        assert (VERIFIED in server.log()) == is_other_boot
        with Caller(server.address) as caller:
            table = caller.table(name)
            found = audit(table, writers)
            for writer in writers:
                writer.forget_before(min(found))
                assert writer.acknowledged.items() <= found.items(), "acknowledged rows are not there"
                writer.settle(table)
            assert table.stats().lost == 0
            assert table.describe().inserted == sum(writer.rows for writer in writers), "rows are there twice, or not"


def test_a_recovery_that_is_killed_is_done_by_the_next_server(start_server: StartServer, tmp_path: Path) -> None:
    data = tmp_path / "data"
    server = start_server("--data-dir", str(data), *POWER)
    with Caller(server.address) as caller:
        name = caller.create(capacity=CAPACITY).name
    writers: list[Writer] = [StreamWriter(0, 1), CallWriter(1, 1)]
    moments = random.Random(5)
    for _ in range(2):
        load(server, name, writers, lambda: time.sleep(0.5))
        pretend_another_boot(data)
        for _ in range(2):
            server.kill_while_starting(moments.uniform(0.3, 1.2))
        server.restart()
        with Caller(server.address) as caller:
            table = caller.table(name)
            found = audit(table, writers)
            for writer in writers:
                writer.forget_before(min(found))
                assert writer.acknowledged.items() <= found.items(), "acknowledged rows are not there"
                writer.settle(table)
            assert table.describe().inserted == sum(writer.rows for writer in writers), "rows are there twice, or not"


def test_recovered_rows_are_read_on_this_host_and_repeats_get_their_keys(
    start_server: StartServer, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    server = start_server("--data-dir", str(data), *POWER)
    writer_id, keys = b"0123456789abcdef", {}
    with Caller(server.address) as caller:
        name = caller.create(capacity=1000).name
        for sequence in range(1, 101):
            values = range(sequence * 15, sequence * 15 + 15)
            keys[sequence] = caller.table(name).insert(values, writer_id=writer_id, sequence=sequence).tolist()
            if sequence == 50:
                wait_until(lambda: caller.table(name).stats().unsynced == 0, "half of it is synced")
    server.kill()
    # The newest insert did not reach the disk completely.
    column = data / "tables" / name / "column-000.bin"
    content = bytearray(column.read_bytes())
    slots = 1000 + 64
    content[(keys[100][-1] % slots) * 8] ^= 255
    column.write_bytes(content)
    pretend_another_boot(data)
    server.restart()
    with Caller(server.address, SAME_HOST) as caller:
        table = caller.table(name)
        live = table.read(table.live_keys())
        assert live.values.tolist() == [key + 15 for key in range(keys[99][-1] + 1 - len(live.keys), keys[99][-1] + 1)]
        drawn = table.sample(300)
        assert drawn.values.tolist() == [key + 15 for key in drawn.keys.tolist()]
        assert table.stats().sampled_same_host == 300
        inserted = table.describe().inserted
        for sequence in range(86, 100):
            assert table.insert([0], writer_id=writer_id, sequence=sequence).tolist() == keys[sequence]
        assert table.describe().inserted == inserted
        # Retrying a lost insert applies it; a second retry is recognized.
        for _ in range(2):
            again = table.insert(range(1500, 1515), writer_id=writer_id, sequence=100).tolist()
            assert again == list(range(inserted, inserted + 15))
        drawn = table.sample(300)
        assert set(drawn.values.tolist()) <= {key + 15 for key in range(inserted + 15)}


def test_after_a_clean_end_another_boot_needs_no_look_at_the_rows(start_server: StartServer, tmp_path: Path) -> None:
    data = tmp_path / "data"
    server = start_server("--data-dir", str(data), *POWER)
    with Caller(server.address) as caller:
        table = caller.create(capacity=100)
        table.insert(range(150))
    server.terminate()
    pretend_another_boot(data)
    server.restart()
    assert VERIFIED not in server.log()
    with Caller(server.address) as caller:
        assert caller.table(table.name).read(np.arange(150)).values.tolist() == list(range(50, 150))


def test_a_mark_of_the_boot_that_is_torn_counts_as_none(start_server: StartServer, tmp_path: Path) -> None:
    data = tmp_path / "data"
    server = start_server("--data-dir", str(data), *POWER)
    with Caller(server.address) as caller:
        table = caller.create(capacity=100)
        table.insert(range(50))
    server.terminate()
    (data / OWNER_FILE).write_bytes(bytes(80))
    server.restart()
    server.wait_for_log(VERIFIED)
    with Caller(server.address) as caller:
        assert caller.table(table.name).stats().lost == 0


def test_tables_keep_their_checksums_whatever_the_setting(start_server: StartServer, tmp_path: Path) -> None:
    data = tmp_path / "data"
    server = start_server("--data-dir", str(data), *POWER)
    with Caller(server.address) as caller:
        table = caller.create(capacity=100)
        table.insert(range(50))
    server.terminate()
    server = start_server("--data-dir", str(data))
    with Caller(server.address) as caller:
        caller.table(table.name).insert(range(50, 80))
        other = caller.create(capacity=100)
    assert (data / "tables" / table.name / "checksums.bin").exists()
    assert not (data / "tables" / other.name / "checksums.bin").exists()
    server.kill()
    pretend_another_boot(data)
    server.restart()
    server.wait_for_log(f"table {other.name}: the machine went down while a server had it open; without checksums")
    with Caller(server.address) as caller:
        assert caller.table(table.name).read(np.arange(80)).values.tolist() == list(range(80))


def test_a_table_whose_rows_nothing_vouches_for_gets_no_checksums(start_server: StartServer, tmp_path: Path) -> None:
    data = tmp_path / "data"
    server = start_server("--data-dir", str(data))
    with Caller(server.address) as caller:
        table = caller.create(capacity=100)
        table.insert(range(50))
    server.kill()
    pretend_another_boot(data)
    refused = run_to_its_end("--data-dir", str(data), *POWER)
    assert refused.returncode == 1
    assert table.name in refused.stderr
    assert "Without checksums" in refused.stderr
    # As the error message advises.
    server.restart()
    server.terminate()
    server = start_server("--data-dir", str(data), *POWER)
    with Caller(server.address) as caller:
        assert caller.table(table.name).read(np.arange(50)).values.tolist() == list(range(50))
    assert (data / "tables" / table.name / "checksums.bin").exists()


def test_durability_without_a_disk_is_refused() -> None:
    refused = run_to_its_end("--durability", "power")
    assert refused.returncode == 2
    assert "data_dir" in refused.stderr
