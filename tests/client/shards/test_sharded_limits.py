"""A table on several servers keeps draws and inserts in a fixed ratio, as one table does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_client import (
    Column,
    DeadlineExceededError,
    InvalidArgumentError,
    LimitedError,
    Next,
    ReplayClient,
    Sampler,
    Table,
    TableEmptyError,
    Transitions,
)
from replay_client._shards.rate_limits import charges, move, spare_samples
from replay_client.sync.shards.drawing.credit import Credit
from replay_client.sync.shards.drawing.sharded_sampler import ShardedSampler
from replay_proto.rate_limit import RateLimit, divided, joined

from tests.client.shards.conftest import COLUMNS, shards_of
from tests.client.shards.test_dropped_rows import store
from tests.client.shards.test_sharded_draws import rows
from tests.support.server_process import ServerProcess

Reach = Callable[..., ReplayClient]
LIMIT = RateLimit(100, 4.0, -40.0, 90.0)
"""The limit of one shard."""
DIFFERENCES = st.lists(st.floats(-60, 120), min_size=1, max_size=5).map(lambda values: dict(enumerate(values)))


def test_parts_of_a_limit_are_the_limit_together() -> None:
    limit = RateLimit(1000, 8.0, 7000.0, 9000.0)
    assert joined([divided(limit, 4)] * 4) == limit


@given(differences=DIFFERENCES, samples=st.integers(0, 600))
def test_samples_are_charged_where_the_difference_is_largest(differences: dict[int, float], samples: int) -> None:
    found = charges(LIMIT, differences, samples)
    after = {shard: difference - found.get(shard, 0) for shard, difference in differences.items()}
    possible = sum(max(0, int(np.floor(value - LIMIT.min_diff))) for value in differences.values())
    assert sum(found.values()) == min(samples, possible)
    assert all(count > 0 and after[shard] >= LIMIT.min_diff for shard, count in found.items())
    if found:  # none that was charged is lower than one that was not, but for rounding
        assert min(after[shard] for shard in found) > max(after.values()) - len(differences) - 1


@given(differences=DIFFERENCES, data=st.data())
def test_a_move_keeps_all_differences_within_the_bounds(differences: dict[int, float], data: st.DataObject) -> None:
    waiting = data.draw(st.sets(st.sampled_from(list(differences))))
    found = move(LIMIT, differences, waiting)
    if found is not None:
        assert found.samples >= 1
        assert found.source in waiting
        assert differences[found.source] - found.samples >= LIMIT.min_diff
        assert differences[found.target] + found.samples <= LIMIT.max_diff


def test_the_whole_table_allows_what_its_shards_do_together() -> None:
    assert spare_samples(LIMIT, {0: -30.0, 1: 10.5}) == 60
    assert spare_samples(LIMIT, {0: -90.0, 1: 0.0}) == 0


def make(client: ReplayClient, **config: Any) -> Table:
    return client.create_table("t", columns=COLUMNS, capacity=3000, **config)


def difference_of(table: Table) -> float:
    limiter = table.stats().rate_limiter
    assert limiter is not None
    return limiter.difference


def test_draws_wait_for_the_rows_of_all_shards_together(servers: list[ServerProcess], reach: Reach) -> None:
    table = make(reach(servers), min_size=90)
    with table.sampler(8, beta=0.4, timeout_s=0) as sampler:
        with pytest.raises(TableEmptyError):
            next(sampler)
        shards_of(table)[1].insert(rows(np.arange(89)))
        with pytest.raises(LimitedError, match="on 3 servers") as refused:
            next(sampler)
        assert refused.value.metadata == {"table": "t", "waited_for": "rows", "have": "89", "needed": "90"}
        shards_of(table)[2].insert(rows(np.arange(1)))
        assert next(sampler).drawable == 90
    with table.sampler(8, beta=0.4, timeout_s=0) as sampler:
        assert len(next(sampler)["number"]) == 8


def test_shards_with_different_limits_are_refused(servers: list[ServerProcess], reach: Reach) -> None:
    client = reach(servers)
    shards = shards_of(make(client, min_size=30))
    shards[1].drop()
    store(servers[1], shards[0].describe(), rate_limiter=RateLimit(7).to_proto())
    with pytest.raises(InvalidArgumentError, match=f"^rate_limit: .* shard 1 at {servers[1].address}"):
        client.table("t")


def test_no_more_samples_are_drawn_than_all_shards_together_allow(servers: list[ServerProcess], reach: Reach) -> None:
    table = make(reach(servers), min_size=30, samples_per_insert=2.0, error_buffer=30.0)
    for shard in shards_of(table).values():
        shard.insert(rows(np.arange(10)))
    with table.sampler(4, beta=0.4, timeout_s=1.0, prefetch=3) as sampler:
        for _ in range(7):
            next(sampler)
        with pytest.raises(DeadlineExceededError, match="have 2, need 4") as refused:
            next(sampler)
        assert refused.value.metadata["waited_for"] == "samples"
        assert difference_of(table) == 60 - 28  # samples that did not suffice were given back
        table.insert(rows(np.arange(1)))
        next(sampler)
    assert difference_of(table) == 62 - 32


def test_a_sampler_goes_on_after_a_reset_and_a_late_draw(servers: list[ServerProcess], reach: Reach) -> None:
    """What requests in flight at the reset have charged is neither waited for nor drawn."""
    table = make(reach(servers), min_size=3, samples_per_insert=4.0, error_buffer=400.0)

    def draw(sampler: Sampler, batches: int) -> None:
        for _ in range(batches):
            assert next(sampler).batch_size == 16

    with table.sampler(16, beta=0.4, prefetch=2, timeout_s=0.3) as sampler:
        for _ in range(4):
            table.insert(rows(np.arange(60)))
            draw(sampler, 3)
            table.reset()
            with pytest.raises((DeadlineExceededError, TableEmptyError)):
                draw(sampler, 3)  # two batches may have arrived before the reset


def test_a_writer_that_is_bound_to_one_shard_does_not_wait_for_rows_of_the_others(
    servers: list[ServerProcess], reach: Reach
) -> None:
    """Its episode alone has to reach the number of rows for which the learner waits."""
    columns: dict[str, Any] = {"obs": Column("float32"), "next_obs": Next("obs")}
    table = reach(servers).create_table(
        "s",
        columns=columns,
        steps=Transitions(1),
        capacity=3000,
        min_size=300,
        samples_per_insert=1.0,
        error_buffer=30.0,
    )

    def act() -> None:
        with table.writer() as writer:
            for step in range(500):
                writer.append(obs=step)

    actor = threading.Thread(target=act)
    actor.start()
    with table.sampler(16, beta=0.4, timeout_s=20) as sampler:
        for _ in range(14):
            next(sampler)
            assert 270 <= difference_of(table) <= 330
    actor.join(20)
    assert not actor.is_alive()


def test_inserts_go_where_there_is_room(servers: list[ServerProcess], reach: Reach) -> None:
    table = make(reach(servers), min_size=9, samples_per_insert=1.0, error_buffer=9.0)
    for _ in range(18):
        table.insert(rows(np.arange(1)), timeout_s=0)
    with pytest.raises(LimitedError) as refused:
        table.insert(rows(np.arange(1)), timeout_s=0)
    assert refused.value.metadata == {"table": "t", "waited_for": "inserts", "have": "0", "needed": "1"}
    table.sample(1, beta=0.0)
    table.insert(rows(np.arange(1)), timeout_s=0)


def learn_and_act(table: Table, steps: int, timeout_s: float) -> tuple[int, int]:
    """Draw from shards with masses of 10 to 20 to 30 and so on, which all get as many rows; return calls and waits."""
    shards = shards_of(table)

    def insert(number: int, count: int) -> None:
        priorities = np.full(count, 10.0 * (number + 1))
        shards[number].insert(rows(np.arange(count)), priorities=priorities, timeout_s=timeout_s)

    for number in shards:
        insert(number, 100)
    calls = 0
    with table.sampler(32, beta=0.4, timeout_s=timeout_s, prefetch=2) as sampler:
        for step in range(steps):
            next(sampler)
            for number in shards:
                insert(number, 8 // len(shards) + ((step + number) % 3 == 0) - (step % 3 == 0))
            calls += 1 + len(shards)
            if step % 25 == 0:
                assert 0 <= difference_of(table) <= 2400
    return calls, sum(shard.stats().waited for shard in shards.values())


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One element for each time that a learner had to wait."""
    found: list[None] = []
    wait = ShardedSampler._await_credit

    def counted(sampler: ShardedSampler, credit: Credit) -> None:
        found.append(None)
        wait(sampler, credit)

    monkeypatch.setattr(ShardedSampler, "_await_credit", counted)
    return found


LIMITED: dict[str, Any] = {"min_size": 300, "samples_per_insert": 4.0, "error_buffer": 1200.0, "alpha": 1.0}


def test_learners_and_actors_of_unequal_shards_hardly_wait(
    servers: list[ServerProcess], reach: Reach, waits: list[None]
) -> None:
    calls, waited = learn_and_act(make(reach(servers), **LIMITED), 120, timeout_s=10)
    assert len(waits) + waited <= calls * 0.01


@pytest.mark.long
def test_under_one_percent_of_many_calls_wait(
    start_server: Callable[..., ServerProcess], reach: Reach, waits: list[None]
) -> None:
    table = make(reach([start_server() for _ in range(4)]), **{**LIMITED, "min_size": 400})
    calls, waited = learn_and_act(table, 4000, timeout_s=10)
    assert len(waits) + waited <= calls * 0.01


def test_charging_samples_where_rows_are_drawn_would_be_noticed(
    servers: list[ServerProcess], reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_mass(limit: RateLimit, differences: dict[int, float], samples: int) -> dict[int, int]:
        return {0: samples // 6, 1: samples // 3, 2: samples - samples // 6 - samples // 3}

    monkeypatch.setattr("replay_client.sync.shards.drawing.credit.charges", by_mass)
    with pytest.raises((DeadlineExceededError, LimitedError)):
        learn_and_act(make(reach(servers), **LIMITED), 150, timeout_s=0.2)
