"""Rows that are lost with a server are counted, and masses that are away; a table keeps its capacity as it grows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from replay_client import ReplayClient, Table, TableExistsError

from tests.client.shards.conftest import COLUMNS, away, shards_of
from tests.client.shards.test_sharded_draws import rows
from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess

Reach = Callable[..., ReplayClient]


def make(client: ReplayClient, capacity: int = 3000) -> Table:
    return client.create_table("t", columns=COLUMNS, capacity=capacity, if_exists="open")


def test_rows_of_a_lost_server_are_counted_to_the_row(servers: list[ServerProcess], reach: Reach) -> None:
    client = reach(servers)
    table = make(client, capacity=30_000)  # evicts nothing until the writer has noticed
    with table.writer() as writer:
        for number in range(1500):
            writer.append(number=number, obs=np.zeros(3))
        writer.flush()
        acknowledged = shards_of(table)[1].size()
        servers[1].kill()
        appended = 1500
        while not table.stats().reports:  # a writer notices when it has rows for the server
            for _ in range(32):
                writer.append(number=0, obs=np.zeros(3))
            appended += 32
        assert table.stats().reports[1].size == acknowledged
        assert reach(servers[2:]).shards.mark(1, state="lost").shards[1].lost_rows[0].size == acknowledged
        writer.flush()
    whole = reach(servers[:1]).table("t").stats()
    assert whole.lost == acknowledged
    assert whole.size + whole.lost == appended
    assert whole.shards_away == ()
    table.drop()
    assert make(client).stats().lost == 0  # another table


def test_learners_report_the_mass_of_a_server_that_is_away(servers: list[ServerProcess], reach: Reach) -> None:
    table = make(reach(servers))
    for shard in shards_of(table).values():
        shard.insert(rows(np.arange(100)), priorities=np.full(100, 2.0))
    with table.sampler(64, beta=0.4) as sampler:
        mass = shards_of(table)[2].stats().total_mass
        next(sampler)
        servers[2].kill()
        while not away(sampler):
            next(sampler)
        wait_until(lambda: 2 in table.stats().reports, "the loss is reported")
        stats = table.stats()
        assert stats.shards_away == (2,)
        assert stats.mass_away == pytest.approx(mass)
        assert (stats.size, stats.lost) == (200, 0)


def inserted(table: Table) -> None:
    for number in range(30):
        table.insert(rows(np.arange(10) + number))


def written(table: Table) -> None:
    with table.writer() as writer:
        for number in range(300):
            writer.append(number=number, obs=np.zeros(3))
            if number % 30 == 29:
                writer.end_episode()


def loaded(table: Table) -> None:
    inserted(table)
    loader = table.loader()
    for part in table.rows():
        loader.insert(part)


@pytest.mark.parametrize("fill", [inserted, written, loaded])
def test_rows_of_a_client_that_has_closed_are_counted(
    servers: list[ServerProcess], reach: Reach, fill: Callable[[Table], None]
) -> None:
    client = reach(servers)
    table = make(client)
    shards_of(table)[1].insert(rows(np.arange(5)))
    with table.sampler(64, beta=0.4, prefetch=1) as sampler:
        next(sampler)
        with reach(servers) as another:
            fill(another.table("t"))
        size = shards_of(table)[1].size()
        assert size > 5
        servers[1].kill()
        client.shards.mark(1, state="lost")
    assert client.table("t").stats().lost == size


def test_rows_of_a_client_that_goes_on_are_counted(servers: list[ServerProcess], reach: Reach) -> None:
    table = make(reach(servers))
    inserted(table)
    sizes = {number: shard.size() for number, shard in shards_of(table).items()}
    wait_until(lambda: len(table.stats().reports) == 3, "the client tells the servers")
    assert {number: report.size for number, report in table.stats().reports.items()} == sizes
    inserted(table)
    size = shards_of(table)[2].size()
    servers[2].kill()
    reach(servers[:2]).shards.mark(2, state="lost")
    wait_until(lambda: table.stats().lost == size, "it tells the rest")


def test_a_number_of_lost_rows_that_nobody_knows_is_logged(
    servers: list[ServerProcess], reach: Reach, caplog: pytest.LogCaptureFixture
) -> None:
    client = reach(servers)
    shards_of(make(client))[1].insert(rows(np.arange(5)))
    servers[1].kill()
    client.shards.mark(1, state="lost")
    assert "it is unknown how many rows of table 't' are lost with shard 1" in caplog.text


def test_a_server_that_still_answers_says_what_it_had(servers: list[ServerProcess], reach: Reach) -> None:
    client = reach(servers)
    shards_of(make(client))[0].insert(rows(np.arange(70)))
    client.shards.mark(0, state="lost")
    assert client.table("t").stats().lost == 70


def test_a_table_is_opened_with_its_capacity_after_a_server_was_added(
    servers: list[ServerProcess], reach: Reach
) -> None:
    client = reach(servers[:2])
    first = make(client)
    client.shards.set([server.address for server in servers])
    again = make(reach(servers[2:]))
    assert again.uid == first.uid
    assert [shard.capacity for shard in shards_of(again).values()] == [1500] * 3
    with pytest.raises(TableExistsError, match="3000 over several servers"):
        make(client, capacity=4000)
    opened = client.table("t").describe().create_arguments()["capacity"]
    assert opened == 3000
