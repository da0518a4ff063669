"""Samplers: staleness of batches, and errors."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from replay_client import (
    ClosedError,
    ConcurrentUseError,
    DeadlineExceededError,
    InvalidArgumentError,
    ReplayClient,
    Table,
    TableEmptyError,
    TableNotFoundError,
    TableReplacedError,
)

from tests.client.conftest import COLUMNS, ways
from tests.client.numbered import assert_whole, exhaust, rows
from tests.support.deadlines import PATIENCE_S, wait_until
from tests.support.server_process import ServerProcess

ALL_DATA_PATHS = True

NewTable = Callable[..., Table]
StartServer = Callable[..., ServerProcess]
Connect = Callable[..., ReplayClient]


@pytest.fixture
def telling(new_table: NewTable) -> Table:
    """A table of one row, so that the total mass of a batch identifies the last update."""
    table = new_table(capacity=10, alpha=1.0, epsilon=0.0)
    table.insert(rows([0]), priorities=[1000.0])
    return table


@pytest.mark.parametrize("prefetch", [1, 2, 3, 7])
def test_a_batch_knows_of_all_updates_but_the_last_few(telling: Table, prefetch: int) -> None:
    with telling.sampler(4, beta=0.4, prefetch=prefetch) as sampler:
        seen = []
        for step, batch in enumerate(itertools.islice(sampler, 30)):
            seen.append(batch.total_mass)
            sampler.update_priorities([0], [step])
    assert seen == [1000.0] * prefetch + list(range(30 - prefetch))
    assert (sampler.updated, sampler.stale) == (30, 0)
    assert telling.read([0]).priorities.tolist() == [29.0]


@pytest.mark.parametrize("prefetch", [8, 16, 64])
def test_batches_asked_for_together_know_of_as_many_updates_or_more(telling: Table, prefetch: int) -> None:
    with telling.sampler(4, beta=0.4, prefetch=prefetch) as sampler:
        seen = []
        for step, batch in enumerate(itertools.islice(sampler, 3 * prefetch)):
            assert sampler.in_flight < prefetch
            seen.append(batch.total_mass)
            sampler.update_priorities([0], [step])
    assert seen[:prefetch] == [1000.0] * prefetch
    assert all(index - prefetch <= known < index for index, known in enumerate(seen[prefetch:], start=prefetch))
    assert telling.read([0]).priorities.tolist() == [3.0 * prefetch - 1]


def test_many_batches_on_their_way_are_asked_for_in_several_messages(telling: Table) -> None:
    with telling.sampler(4, beta=0.4, prefetch=2000) as sampler:  # a quarter of it exceeds the limit of one message
        next(sampler)
        assert sampler.in_flight > 1900


def test_beta_holds_for_what_is_asked_from_then_on(telling: Table) -> None:
    prefetch = 3
    with telling.sampler(4, beta=0.0, prefetch=prefetch) as sampler:
        seen = []
        for step, batch in enumerate(itertools.islice(sampler, 10), start=1):
            seen.append(batch.beta)
            sampler.beta = step / 10
            assert sampler.beta == step / 10
    assert seen == [0.0] * prefetch + [step / 10 for step in range(1, 8)]
    with pytest.raises(InvalidArgumentError, match="beta"):
        sampler.beta = -1.0


def test_nothing_is_asked_for_ahead_with_a_prefetch_of_one(telling: Table) -> None:
    with telling.sampler(4, beta=0.4, prefetch=1) as sampler:
        assert sampler.in_flight == 0
        next(sampler)
        assert sampler.in_flight == 0
    with telling.sampler(4, beta=0.4, prefetch=4) as sampler:
        next(sampler)
        assert sampler.in_flight == 3
        sampler.prefetch = 1
        for _ in range(3):
            next(sampler)
        assert sampler.in_flight == 0


def test_batches_are_whole_and_of_the_size_asked_for(table: Table) -> None:
    table.insert(rows(range(100)))
    with table.sampler(37, beta=0.4, weight_norm="table", draw_mode="independent") as sampler:
        for batch in itertools.islice(sampler, 20):
            assert batch.batch_size == 37
            assert_whole(batch.columns)
            assert batch.row_keys.tolist() == batch["number"].tolist()


def test_several_updates_between_two_batches_are_all_sent_and_the_last_wins(telling: Table) -> None:
    with telling.sampler(4, beta=0.4, prefetch=1) as sampler:
        next(sampler)
        for priority in (5.0, 6.0, 7.0):
            sampler.update_priorities([0, 99], [priority, 1.0])
        assert next(sampler).total_mass == 7.0
        sampler.flush(timeout_s=10)
        assert (sampler.updated, sampler.stale) == (1, 3)


def test_flush_waits_for_updates_and_keeps_the_batches(telling: Table) -> None:
    with telling.sampler(4, beta=0.4, prefetch=3) as sampler:
        next(sampler)
        sampler.update_priorities([0], [5.0])
        sampler.flush(timeout_s=10)
        assert sampler.updated == 1
        assert telling.read([0]).priorities.tolist() == [5.0]
        assert sampler.in_flight == 2
        assert [next(sampler).total_mass for _ in range(4)] == [1000.0, 1000.0, 5.0, 5.0]


def test_a_sampler_ends_with_its_client(server: ServerProcess, telling: Table, data_path: str) -> None:
    client = ReplayClient(server.address, **ways(data_path))
    sampler = client.table(telling.name).sampler(4, beta=0.4, prefetch=1)
    next(sampler)
    client.close()
    with pytest.raises(ClosedError):
        next(sampler)
    sampler.cancel()


@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_second_thread_is_refused_while_another_waits_and_may_close(table: Table, device: str | None) -> None:
    sampler: Any = table.sampler(4, beta=0.4, prefetch=2, timeout_s=PATIENCE_S, device=device)
    with ThreadPoolExecutor(1) as pool:
        waiting: Future[Any] = pool.submit(next, sampler)
        wait_until(lambda: table.stats().waiting == 1, "it waits for rows")
        for call in (lambda: next(sampler), sampler.flush):
            with pytest.raises(ConcurrentUseError, match="create a sampler for each thread"):
                call()
        table.insert(rows([1]))
        assert waiting.result(PATIENCE_S).batch_size == next(sampler).batch_size == 4
        table.reset()
        waiting = pool.submit(exhaust, sampler)
        wait_until(lambda: table.stats().waiting == 1, "it waits again")
        sampler.close()
        with pytest.raises(ClosedError):
            waiting.result(PATIENCE_S / 2)


def test_a_signal_handler_is_refused_while_its_thread_waits(table: Table) -> None:
    sampler, refusals = table.sampler(4, beta=0.4, timeout_s=PATIENCE_S), []

    def flush(*_: object) -> None:
        with pytest.raises(ConcurrentUseError) as refusal:
            sampler.flush()
        refusals.append(refusal.value)
        table.insert(rows([1]))

    def interrupt() -> None:
        wait_until(lambda: table.stats().waiting == 1, "it waits for rows")
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, flush)
    try:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(interrupt)
            assert next(sampler).batch_size == 4
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(refusals) == 1


def test_updates_that_a_waiting_thread_keeps_from_being_flushed_are_reported(table: Table) -> None:
    sampler = table.sampler(4, beta=0.4, timeout_s=PATIENCE_S)
    sampler.update_priorities([0], [1.0])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, sampler)
        wait_until(lambda: table.stats().waiting == 1, "it waits for rows")
        with pytest.raises(ConcurrentUseError):
            sampler.close()
        with pytest.raises(ClosedError):
            waiting.result(PATIENCE_S / 2)


def test_leaving_the_block_sends_the_last_update(telling: Table) -> None:
    with telling.sampler(4, beta=0.4) as sampler:
        sampler.update_priorities([0], [5.0])
    assert telling.read([0]).priorities.tolist() == [5.0]
    sampler.close()
    for call in (lambda: next(sampler), sampler.flush, lambda: sampler.update_priorities([0], [1.0])):
        with pytest.raises(ClosedError):
            call()


def test_updates_are_copied_and_bounded(telling: Table) -> None:
    with telling.sampler(4, beta=0.4) as sampler:
        priorities = np.array([5.0])
        sampler.update_priorities([0], priorities)
        priorities[0] = 6.0
        sampler.update_priorities(np.arange(1, 1 << 16), np.ones((1 << 16) - 1))
        sampler.flush(timeout_s=10)
        assert (sampler.updated, sampler.stale) == (1, (1 << 16) - 1)
    assert telling.read([0]).priorities.tolist() == [5.0]


@pytest.mark.parametrize("priorities", [[np.nan], [-1.0], [1.0, 2.0], 1.0])
def test_a_wrong_update_is_refused_at_once_and_the_sampler_goes_on(telling: Table, priorities: Any) -> None:
    with telling.sampler(4, beta=0.4, prefetch=1) as sampler:
        next(sampler)
        with pytest.raises(InvalidArgumentError, match="priorities"):
            sampler.update_priorities([0], priorities)
        assert next(sampler).total_mass == 1000.0


def test_an_update_that_the_server_refuses_is_raised_once(new_table: NewTable) -> None:
    table = new_table(alpha=1.0)
    table.insert(rows([0]))
    with table.sampler(4, beta=0.4, prefetch=1) as sampler:
        next(sampler)
        sampler.update_priorities([0], [1e300])
        with pytest.raises(InvalidArgumentError):
            next(sampler)
        assert next(sampler).batch_size == 4


def test_an_empty_table_is_said_to_be_empty_until_it_is_not(table: Table) -> None:
    with table.sampler(4, beta=0.4, timeout_s=0) as sampler:
        for _ in range(3):
            with pytest.raises(TableEmptyError):
                next(sampler)
        table.insert(rows([1]))
        assert next(sampler).batch_size == 4


def test_a_sampler_may_wait_for_rows(table: Table) -> None:
    with table.sampler(4, beta=0.4, timeout_s=0.05) as sampler, pytest.raises(DeadlineExceededError):
        next(sampler)
    with table.sampler(4, beta=0.4, timeout_s=30.0) as sampler:
        batches: list[object] = []
        thread = threading.Thread(target=lambda: batches.append(next(sampler)))
        thread.start()
        table.insert(rows([1]))
        thread.join()
        assert len(batches) == 1


def test_a_dropped_table_and_a_new_one_are_told_apart(client: ReplayClient, table: Table) -> None:
    table.insert(rows([1]))
    sampler = table.sampler(4, beta=0.4)
    batch = next(sampler)
    client.drop_table(table.name)
    sampler.update_priorities(batch, np.ones(4))
    with pytest.raises(TableNotFoundError):
        exhaust(sampler)
    again = client.create_table(table.name, columns=COLUMNS, capacity=1000)
    with pytest.raises(TableReplacedError):
        next(sampler)
    with pytest.raises(TableReplacedError):
        exhaust(sampler)
    again.insert(rows([2]))
    with again.sampler(4, beta=0.4) as after:
        assert next(after)["number"].tolist() == [2] * 4


@pytest.mark.parametrize("device", [None, "cpu"])
def test_the_size_of_batches_is_shown_and_cannot_be_changed(table: Table, device: str | None) -> None:
    with table.sampler(5, device=device) as sampler:
        assert sampler.batch_size == 5
        with pytest.raises(AttributeError, match="batch_size"):
            sampler.batch_size = 6  # type: ignore[misc]


def test_a_prefetch_below_one_is_refused(table: Table) -> None:
    with pytest.raises(InvalidArgumentError, match="prefetch"):
        table.sampler(4, beta=0.4, prefetch=0)


def test_flush_gives_up_in_time_and_goes_on_later(start_server: StartServer, connect: Connect) -> None:
    server = start_server()
    table = connect(server).create_table("slow", columns=COLUMNS, capacity=100, alpha=1.0, epsilon=0.0)
    table.insert(rows([0]))
    with table.sampler(4, beta=0.4) as sampler:
        next(sampler)
        server.process.send_signal(signal.SIGSTOP)
        sampler.update_priorities([0], [5.0])
        with pytest.raises(DeadlineExceededError):
            sampler.flush(timeout_s=0.2)
        server.process.send_signal(signal.SIGCONT)
        sampler.flush(timeout_s=30)
        assert table.read([0]).priorities.tolist() == [5.0]
        for _ in range(4):
            batch = next(sampler)
        assert batch.total_mass == 5.0


@pytest.mark.parametrize(("prefetch", "ahead"), [(1, [0, 0, 0, 0]), (3, [0, 1, 2, 2, 2, 2])])
def test_the_server_is_told_how_many_batches_were_on_their_way(table: Table, prefetch: int, ahead: list[int]) -> None:
    table.insert(rows(range(20)))
    with table.sampler(4, beta=0.4, prefetch=prefetch) as sampler:
        for _ in range(4):
            next(sampler)
        wait_until(lambda: table.stats().batches == len(ahead), "all batches asked for are drawn")
    assert table.stats().batches_ahead == sum(ahead)


@pytest.mark.parametrize("is_dropped", [False, True])
def test_updates_behind_a_waiting_draw_are_delivered_on_close(new_table: NewTable, *, is_dropped: bool) -> None:
    """The actors have ended, so that no sample is left for the batches that were requested in advance."""
    table = new_table(capacity=100, min_size=4, samples_per_insert=1.0, error_buffer=4.0)
    table.insert(rows(range(8)))
    sampler = table.sampler(4, beta=0.0)
    batch, _ = next(sampler), next(sampler)
    sampler.request()
    wait_until(lambda: table.stats().waiting == 1, "a draw waits for samples")
    sampler.update_priorities(batch, np.full(4, 3.0))
    keys, began = np.unique(batch.row_keys), time.monotonic()
    if is_dropped:
        with pytest.warns(ResourceWarning):
            del sampler
    else:
        sampler.close()
        assert sampler.unacknowledged == 0
    wait_until(lambda: bool((table.read(keys).priorities == 3.0).all()), "the update arrives")
    assert time.monotonic() - began < 10.0  # the client's time limit is 30 s


def test_updates_behind_a_refused_draw_are_delivered_on_close(new_table: NewTable) -> None:
    table = new_table(capacity=100, min_size=4, samples_per_insert=1.0, error_buffer=4.0)
    table.insert(rows(range(8)))
    with table.sampler(4, beta=0.0, prefetch=1, timeout_s=1.0) as sampler:
        batch, _ = next(sampler), next(sampler)
        sampler.request()  # waits, because all samples are drawn, and is refused
        sampler.update_priorities(batch, np.full(4, 3.0))
    assert sampler.unacknowledged == 0
    assert (table.read(np.unique(batch.row_keys)).priorities == 3.0).all()


def test_a_flush_that_times_out_leaves_the_stream_and_the_rows_that_come_over_it(new_table: NewTable) -> None:
    table = new_table(capacity=100, backend="fifo")
    table.insert(rows(range(4)))
    with table.sampler(4, beta=0.0, prefetch=2, timeout_s=30.0) as sampler:
        batch = next(sampler)  # the next one waits for rows
        stream = sampler._stream._stream
        sampler.update_priorities(batch, np.ones(4))
        for _ in range(2):
            with pytest.raises(DeadlineExceededError, match="updates of table"):
                sampler.flush(timeout_s=0.05)
        table.insert(rows(range(4, 12)))
        assert [next(sampler)["number"].tolist() for _ in range(2)] == [[4, 5, 6, 7], [8, 9, 10, 11]]
        assert sampler._stream._stream is stream
        table.insert(rows(range(4)))  # for the batch in flight
