"""Rate limiters and queues through the client library."""

from __future__ import annotations

import io
import itertools
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from replay_client import (
    Column,
    DeadlineExceededError,
    LimitedError,
    ReplayClient,
    ResourceExhaustedError,
    ServerStats,
    Stats,
    Table,
    TableDescription,
    TableResetError,
)
from replay_client.cli import lists
from replay_client.cli.plain import plain_stats
from rich.console import Console

from tests.client.conftest import COLUMNS
from tests.client.numbered import assert_whole, row, rows
from tests.support.deadlines import PATIENCE_S, wait_until
from tests.support.server_process import ServerProcess

NewTable = Callable[..., Table]
StartServer = Callable[..., ServerProcess]
Connect = Callable[..., ReplayClient]
ANY_SERVER = ServerStats(version="0", uptime_s=1.0, resident_bytes=1, cpu_s=1.0, methods={})


def test_a_table_says_what_its_limit_is(client: ReplayClient, new_table: NewTable) -> None:
    table = new_table(min_size=100, samples_per_insert=4.0, error_buffer=50.0)
    limit = client.table(table.name).describe().rate_limit
    assert limit is not None
    assert (limit.min_size, limit.samples_per_insert, limit.min_diff, limit.max_diff) == (100, 4.0, 350.0, 450.0)
    table.insert(rows(range(100)))
    table.sample(10, beta=0.4)
    stands = table.stats().rate_limiter
    assert stands is not None
    assert (stands.inserted, stands.sampled, stands.difference) == (100, 10, 390.0)
    assert new_table().describe().rate_limit is None
    assert new_table().stats().rate_limiter is None


def test_a_large_insert_goes_in_as_the_limiter_allows(new_table: NewTable) -> None:
    table = new_table(min_size=10, samples_per_insert=2.0, error_buffer=20.0)
    inserting = threading.Thread(target=lambda: table.insert(rows(range(200)), timeout_s=30))
    inserting.start()
    for _ in range(48):
        table.sample(8, beta=0.4, timeout_s=30)
    inserting.join()
    assert table.describe().inserted == 200
    with pytest.raises(DeadlineExceededError) as late:
        table.insert(rows(range(200, 300)), timeout_s=2.0)
    assert late.value.metadata["waited_for"] == "inserts"


def test_a_writer_waits_in_append_and_flush_and_loses_nothing(new_table: NewTable) -> None:
    table = new_table(min_size=10, samples_per_insert=1.0, error_buffer=20.0)
    appended = threading.Event()

    def write() -> None:
        with table.writer(max_delay_s=0.01) as writer:
            for number in range(1000):
                writer.append(**row(number))
            appended.set()

    writing = threading.Thread(target=write)
    writing.start()
    wait_until(lambda: table.stats().waiting_inserts == 1, "the writer waits")
    assert not appended.is_set()
    inserted = 0
    while writing.is_alive() and inserted < 1000:
        table.sample(10, beta=0.4, timeout_s=30)
        inserted = table.describe().inserted
    writing.join()
    read = table.read(np.arange(1000))
    assert read["number"].tolist() == list(range(1000))


def test_a_writer_goes_on_after_a_reset(new_table: NewTable) -> None:
    table = new_table(capacity=10, backend="fifo")
    with table.writer(max_delay_s=0.01) as writer:
        for number in range(15):
            writer.append(**row(number))
        wait_until(lambda: table.stats().waiting_inserts == 1, "the writer waits")
        table.reset()
        writer.flush(timeout_s=30)
        drawn = table.sample(table.describe().size, beta=0.0)["number"].tolist()
    assert drawn == list(range(15 - len(drawn), 15))


def test_a_sampler_that_waited_is_told_of_a_reset_and_goes_on(new_table: NewTable) -> None:
    table = new_table(min_size=10)
    with table.sampler(4, beta=0.4, prefetch=2, timeout_s=60.0) as sampler:
        errors: list[Exception] = []

        def draw() -> None:
            try:
                next(sampler)
            except TableResetError as error:
                errors.append(error)

        drawing = threading.Thread(target=draw)
        drawing.start()
        wait_until(lambda: table.stats().waiting == 1, "the sampler waits")
        table.reset()
        drawing.join()
        assert len(errors) == 1
        table.insert(rows(range(10)))
        assert len(next(sampler).row_keys) == 4


def test_what_a_sampler_prefetches_counts_as_drawn(new_table: NewTable) -> None:
    table = new_table(min_size=10, samples_per_insert=1.0, error_buffer=10.0)
    table.insert(rows(range(10)))
    with table.sampler(2, beta=0.4, prefetch=4, timeout_s=30.0) as sampler:
        next(sampler)
        wait_until(lambda: table.stats().sampled == 8, "four batches are drawn")
    stands = table.stats().rate_limiter
    assert stands is not None
    assert stands.sampled == 8


def test_a_queue_hands_out_rows_in_order_and_once(new_table: NewTable) -> None:
    # Rows large enough that a client on the same host copies them itself.
    columns = {**COLUMNS, "image": Column("uint8", (64, 64))}
    table = new_table(columns=columns, capacity=64, backend="fifo")
    images = {"image": np.zeros((200, 64, 64), np.uint8)}

    inserting = threading.Thread(target=lambda: table.insert({**rows(range(200)), **images}, timeout_s=30))
    inserting.start()
    drawn = []
    with table.sampler(20, beta=0.0, prefetch=2, timeout_s=30.0) as sampler:
        for _ in range(9):
            batch = next(sampler)
            drawn += batch["number"].tolist()
            assert batch.weights.tolist() == [1.0] * 20
        sampler.prefetch = 1
        drawn += next(sampler)["number"].tolist()
    inserting.join()
    assert drawn == list(range(200))


def test_bounds_name_their_setting(start_server: StartServer, connect: Connect) -> None:
    client = connect(start_server("--max-tables", "1", "--max-request-mb", "2", "--max-reply-mb", "2"))
    table = client.create_table("one", columns=COLUMNS, capacity=10)
    with pytest.raises(ResourceExhaustedError, match="max_tables"):
        client.create_table("two", columns=COLUMNS, capacity=10)
    with pytest.raises(ResourceExhaustedError, match="max_reply_mb"):
        table.sample(50_000, beta=0.4)
    assert table.read(np.zeros(300_000, np.int64)).batch_size == 0  # in several calls


def test_calls_respect_the_limit_on_their_rows(start_server: StartServer, connect: Connect) -> None:
    client = connect(start_server("--max-rows-per-call", "1000"))
    table = client.create_table("one", columns={**COLUMNS, "value": Column("float32", mutable=True)}, capacity=10_000)
    assert table.describe().max_rows_per_call == 1000
    keys = table.insert({**rows(range(5000)), "value": np.zeros(5000, np.float32)})
    assert table.update_priorities(keys, np.ones(5000)).updated == 5000
    assert table.update(keys, {"value": np.arange(5000)}).updated == 5000
    assert table.read(keys)["value"].tolist() == list(range(5000))
    with table.sampler(256, beta=0.4, prefetch=128) as sampler:
        assert [next(sampler).batch_size for _ in range(200)] == [256] * 200
        sampler.update_priorities(keys, np.full(5000, 2.0))
        sampler.update(keys, {"value": np.arange(5000) + 1})
    assert table.read(keys)["value"].tolist() == list(range(1, 5001))
    assert (table.read(keys[::100]).priorities == 2.0).all()
    with pytest.raises(ResourceExhaustedError, match="max_rows_per_call"):
        table.sample(1001, beta=0.4)


@pytest.mark.parametrize("mib", [3, 20])
def test_messages_that_grpc_cuts_off_are_refused_like_those_that_the_server_refuses(
    start_server: StartServer, connect: Connect, mib: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TableDescription, "keys_per_call", 1 << 40)  # nothing is split
    monkeypatch.setattr("replay_client._operations.table.READ_BYTES", 1 << 40)
    client = connect(start_server("--max-request-mb", "2", "--max-reply-mb", "2"))
    table = client.create_table("one", columns=COLUMNS, capacity=100)
    table.insert(rows([1]))
    keys = np.zeros(mib << 17, np.int64)
    sampler = table.sampler(1, beta=0.0, prefetch=1)
    next(sampler)

    def update_on_the_stream() -> None:
        sampler.update_priorities(keys, np.ones(len(keys)))
        next(sampler)

    calls = (lambda: table.read(keys), lambda: table.update_priorities(keys, np.ones(len(keys))), update_on_the_stream)
    for call in calls:
        with pytest.raises(ResourceExhaustedError, match="max_request_mb") as refusal:
            call()
        error = refusal.value
        assert (error.reason, error.metadata["bound"]) == ("TOO_LARGE", "bytes of a request")
        assert error.metadata["setting"] == "max_request_mb of the server"
    # Client and stream remain usable.
    assert next(sampler)["number"].tolist() == [1]
    assert table.read([0])["number"].tolist() == [1]
    sampler.close()


def test_the_command_shows_how_the_limiter_stands(new_table: NewTable) -> None:
    table = new_table(min_size=10, samples_per_insert=2.0, error_buffer=8.0)
    table.insert(rows(range(12)))
    table.sample(5, beta=0.4)
    console = Console(width=200, record=True, file=io.StringIO())
    stats = Stats(server=ANY_SERVER, tables={table.name: table.stats()})
    console.print(lists.stats_view(stats, "server", table.name, 200))
    shown = console.export_text()
    assert re.search(r"draws per insert +2", shown)
    assert re.search(r"difference +19 of 12 to 28", shown)
    plain = plain_stats(stats)["tables"][table.name]
    assert plain["rate_limit"]["min_size"] == 10
    assert plain["rate_limiter"] == {"inserted": 12, "sampled": 5, "difference": 19.0}


def test_an_insert_that_waits_holds_up_no_other_threads(new_table: NewTable) -> None:
    queue = new_table(backend="fifo", capacity=2)
    queue.insert(rows(range(2)))

    with ThreadPoolExecutor(1) as threads:
        patient = threads.submit(queue.insert, rows([2]), timeout_s=PATIENCE_S)
        wait_until(lambda: queue.stats().waiting_inserts == 1, "the patient insert waits")
        with pytest.raises(DeadlineExceededError) as error:
            queue.insert(rows([3]), timeout_s=0.2)
        assert error.value.metadata["waited_for"] == "room"
        assert not patient.done()
        queue.sample(1)
        assert patient.result().tolist() == [2]


def test_64_threads_share_one_table(new_table: NewTable) -> None:
    table = new_table(capacity=20_000)
    table.insert(rows([0]))

    def work(thread: int) -> list[int]:
        inserted = []
        for turn in range(10):
            numbers = 1 + 300 * thread + 30 * turn + np.arange(30)
            inserted += table.insert(rows(numbers)).tolist()
            batch = table.sample(32, beta=0.4)
            assert_whole(table.read(batch.row_keys).columns)
            assert table.update_priorities(batch.row_keys, np.ones(32)).stale == 0
        return inserted

    with ThreadPoolExecutor(64) as threads:
        keys = [key for inserted in threads.map(work, range(64)) for key in inserted]
    assert sorted(keys) == list(range(1, 1 + 64 * 300))
    stored = table.read(np.arange(1 + 64 * 300)).columns
    assert sorted(stored["number"].tolist()) == list(range(1 + 64 * 300))


def test_an_error_says_how_many_rows_of_a_split_insert_were_inserted(new_table: NewTable) -> None:
    table = new_table(columns={"number": Column("int64")}, backend="fifo", capacity=8192)
    with pytest.raises(LimitedError) as raised:
        table.insert({"number": np.arange(8193)}, timeout_s=0)
    assert raised.value.__notes__ == [f"{len(table)} of 8193 rows were inserted before this error"]
    assert len(table) > 0


def test_updates_in_the_message_of_a_refused_draw_arrive(new_table: NewTable) -> None:
    table = new_table(min_size=1, samples_per_insert=1.0, error_buffer=8.0)
    table.insert(rows(range(8)))
    with table.sampler(8, beta=0.4, prefetch=1, timeout_s=0) as sampler:
        for batch in itertools.islice(sampler, 1):
            sampler.update_priorities(batch, np.full(8, 5.0))
        with pytest.raises(LimitedError):
            next(sampler)
        sampler.flush()
    assert set(table.read(batch).priorities.tolist()) == {5.0}
