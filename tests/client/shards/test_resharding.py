"""`replay-reshard` rewrites checkpoints for another number of servers, which restore all rows."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from replay_client import Batch, Column, Next, ReplayClient, ReplayError, Stack, Table, Transitions
from replay_server.resharding.command import run as reshard

from tests.client.shards.conftest import COLUMNS, in_order, shards_of
from tests.client.shards.test_sharded_draws import rows
from tests.support.formulas import probabilities
from tests.support.server_process import ServerProcess

Reach = Callable[..., ReplayClient]
Start = Callable[..., ServerProcess]
PLAIN: dict[str, dict[str, float]] = {"sum_tree": {"alpha": 0.7}, "rank": {"alpha": 0.6}, "uniform": {}}
"""Parameters of the plain tables, which are named after their backends."""
STEPS: dict[str, Any] = {
    "columns": {"number": Column("int64"), "pair": Stack("number", 2), "next": Next("number")},
    "steps": Transitions(2),
}
CAPACITY, FULL = 3000, 600
"""Capacities of the plain tables, and of the table of steps, which evicts rows."""
LONGEST = 20
"""Most rows of an episode."""


class Row(NamedTuple):
    """All that a table keeps of a row, except its key."""

    values: tuple[bytes, ...]
    priority: float | None
    """None if it cannot be drawn."""
    link: tuple[int, ...]


class Contents(NamedTuple):
    """The rows of a table, by their numbers."""

    rows: Mapping[int, Row]
    order: Mapping[int, Sequence[int]]
    """Numbers of the rows in each shard, oldest first."""

    @property
    def drawable(self) -> Mapping[int, float]:
        """Priorities of the rows that can be drawn."""
        return {number: row.priority for number, row in self.rows.items() if row.priority is not None}


class Taken(NamedTuple):
    """A checkpoint."""

    parts: list[str]
    tables: Mapping[str, Contents]
    keys: Mapping[str, NDArray[np.int64]]


def contents(table: Table) -> Contents:
    """Read all rows of a table, and their exact probabilities."""
    found: dict[int, Row] = {}
    order: dict[int, list[int]] = {}
    for part in table.rows():
        links = [part.streams, part.episodes, *([] if part.steps is None else [part.steps, part.ends])]
        for place, (key, number) in enumerate(zip(part.row_keys.tolist(), part["number"].tolist(), strict=True)):
            assert number not in found, f"row {number} is there twice"
            found[number] = Row(
                tuple(column[place].tobytes() for column in part.columns.values()),
                None if np.isnan(part.priorities[place]) else float(part.priorities[place]),
                tuple(int(words[place]) for words in links if words is not None),
            )
            order.setdefault(key >> 48, []).append(number)
    return Contents(found, order)


def fill(client: ReplayClient) -> dict[str, Contents]:
    """Create tables, fill them with several writers, and return their contents."""
    random = np.random.default_rng(3)
    tables = [
        client.create_table(name, columns=COLUMNS, capacity=CAPACITY, backend=name, seed=1, **parameters)  # type: ignore[arg-type]
        for name, parameters in PLAIN.items()
    ]
    for table in tables:
        for number in range(3):
            table.insert(rows(np.arange(100) + 1000 * number))
            with table.writer() as writer:
                for row in range(200):
                    values = rows(np.array([1000 * number + 500 + row]))
                    writer.append(**{name: column[0] for name, column in values.items()})
    steps = client.create_table("steps", capacity=FULL, **STEPS)
    write_steps(steps, episodes=70)
    for table in [*tables, steps]:
        for part in table.rows():
            table.update_priorities(part.row_keys, random.gamma(1.0, 2.0, len(part.row_keys)))
    return {table.name: contents(table) for table in [*tables, steps]}


def write_steps(table: Table, episodes: int, first: int = 0) -> None:
    """Write episodes of different lengths to two streams, whose last ones stay open."""
    number = first
    with table.writer(streams=2) as writer:
        for episode in range(episodes):
            length = 3 + (episode * 7) % (LONGEST - 4)
            for _ in range(length):
                writer[episode % 2].append(number=number)
                number += 1
            if episode < episodes - 2:
                writer[episode % 2].end_episode(number=number)
                number += 1


@pytest.fixture(scope="module")
def of_three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Taken]:
    """A checkpoint of three servers."""
    yield from taken(tmp_path_factory.mktemp("three"), 3)


@pytest.fixture(scope="module")
def of_one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Taken]:
    """A checkpoint of one server."""
    yield from taken(tmp_path_factory.mktemp("one"), 1)


def taken(folder: Path, count: int) -> Iterator[Taken]:
    flags = [("--memory-dir", str(folder), "--checkpoint-dir", str(folder / str(number))) for number in range(count)]
    with ExitStack() as ending:
        servers = [ServerProcess(folder / f"log-{number}", *flags[number], forked=True) for number in range(count)]
        for server in servers:
            ending.callback(server.kill)
        with ReplayClient(",".join(server.address for server in servers)) as client:
            tables = fill(client)
            keys = {name: np.concatenate([part.row_keys for part in client.table(name).rows()]) for name in tables}
            made = client.checkpoint()
    yield Taken([part.directory for part in made.parts.values()] or [made.directory], tables, keys)


def free_addresses(count: int) -> list[str]:
    with ExitStack() as bound:
        sockets = [bound.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return sorted(f"127.0.0.1:{each.getsockname()[1]}" for each in sockets)


def restored(parts: Sequence[str], addresses: Sequence[str], out: Path, start_server: Start) -> list[ServerProcess]:
    """Reshard a checkpoint, and start the new servers."""
    assert reshard([*parts, "--to", ",".join(addresses), "--out", str(out)]) == 0
    folders = sorted(out.iterdir(), key=lambda part: int(part.name.removeprefix("shard-")))
    ports = [int(address.rpartition(":")[2]) for address in addresses]
    (name,) = {Path(part).name for part in parts}
    return [
        start_server("--restore", str(folder / name), port=port) for folder, port in zip(folders, ports, strict=True)
    ]


@pytest.mark.parametrize(("before", "count"), [("of_three", 2), ("of_three", 5), ("of_three", 1), ("of_one", 3)])
def test_all_rows_are_drawn_as_before(
    before: str,
    count: int,
    start_server: Start,
    reach: Reach,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    old: Taken = request.getfixturevalue(before)
    client = reach(restored(old.parts, free_addresses(count), tmp_path / "out", start_server)[:1])
    for name in PLAIN:
        new = contents(client.table(name))
        assert new.rows == old.tables[name].rows
        sizes = [len(order) for order in new.order.values()]
        assert len(sizes) == count
        assert max(sizes) - min(sizes) <= 1
        check_order(new, old.tables[name])
        check_draws(client.table(name), new)
    check_steps(client.table("steps"), old.tables["steps"], capsys.readouterr().out)


def check_draws(table: Table, known: Contents) -> Batch:
    """Check that rows are drawn with the probabilities that their priorities give, and return a batch."""
    described, priorities = table.describe(), known.drawable
    exact = probabilities(described.backend, described.parameters, np.array(list(priorities.values())))
    by_number = dict(zip(priorities, exact.tolist(), strict=True))
    batch = table.sample(1000, beta=0.4)
    expected = [by_number[number] for number in batch["number"].tolist()]
    np.testing.assert_allclose(batch.probabilities, expected, rtol=1e-12)
    return batch


def check_order(new: Contents, old: Contents) -> None:
    """Check that each shard has its rows in the order of their places in the old shards."""
    place = {number: (index + 0.5) / len(order) for order in old.order.values() for index, number in enumerate(order)}
    for order in new.order.values():
        assert list(order) == sorted(order, key=place.__getitem__)


def check_steps(table: Table, old: Contents, said: str) -> None:
    """Check the rows of a table of steps, and which windows can be drawn."""
    new = contents(table)
    evicted = old.rows.keys() - new.rows.keys()
    assert len(evicted) <= LONGEST
    assert (f"the oldest {len(evicted)} rows" in said) == bool(evicted)
    by_link = {row.link[:3]: number for number, row in old.rows.items()}
    can_be_drawn = set[int]()
    for number in old.drawable:
        stream, episode, step = old.rows[number].link[:3]
        window = {
            by_link[stream, episode, each]
            for each in range(max(0, step - 1), step + 3)
            if (stream, episode, each) in by_link
        }
        if not window & evicted:
            can_be_drawn.add(number)
    assert new.drawable.keys() == can_be_drawn
    for number, row in new.rows.items():
        before = old.rows[number]
        assert (row.values, row.link) == (before.values, before.link)
        assert row.priority == before.priority or number not in can_be_drawn
    check_order(new, old)
    shard_of = {number: shard for shard, order in new.order.items() for number in order}
    episodes: dict[tuple[int, ...], set[int]] = {}
    for number, row in new.rows.items():
        episodes.setdefault(row.link[:2], set()).add(shard_of[number])
    assert all(len(shards) == 1 for shards in episodes.values())
    sizes = [len(order) for order in new.order.values()]
    assert max(sizes) - min(sizes) <= LONGEST
    batch = check_draws(table, new)
    for number, pair, following in zip(
        batch["number"].tolist(), batch["pair"].tolist(), batch["next"].tolist(), strict=True
    ):
        stream, episode, step = old.rows[number].link[:3]
        assert pair == [by_link.get((stream, episode, step - 1), 0), number]
        assert following == max(by_link.get((stream, episode, step + each), 0) for each in (1, 2))


@pytest.mark.parametrize("count", [1, 2])
def test_tables_go_on(of_three: Taken, count: int, start_server: Start, reach: Reach, tmp_path: Path) -> None:
    client = reach(restored(of_three.parts, free_addresses(count), tmp_path / "out", start_server))
    table = client.create_table("sum_tree", columns=COLUMNS, capacity=CAPACITY, if_exists="open", alpha=0.7)
    assert (len(table), table.describe().inserted >= 900, table.stats().lost) == (900, True, 0)
    assert table.update_priorities(of_three.keys["sum_tree"], np.full(900, 1e9)).updated == 0
    first = table.insert(rows(np.arange(10_000, 10_100)))
    assert not np.isin(first, of_three.keys["sum_tree"]).any()
    with table.writer() as writer:
        for number in range(11_000, 21_000):  # at random, each shard gets more rows than its capacity
            writer.append(number=number, obs=np.zeros(3))
    live = np.concatenate([part["number"] for part in table.rows()])
    assert len(live) == len(table) == CAPACITY
    assert live.min() >= 10_000, "old rows are evicted first"
    with table.sampler(64, beta=0.4) as sampler:
        batch = next(sampler)
        sampler.update_priorities(batch, np.full(64, 7.0))
        sampler.flush()
    assert (table.read(np.unique(batch.row_keys)).priorities == 7.0).all()
    steps = client.table("steps")
    write_steps(steps, episodes=140, first=100_000)
    assert len(steps) == FULL
    assert (steps.sample(500, beta=0.4)["number"] >= 100_000).all()


def test_programs_that_use_the_old_servers_are_refused(start_server: Start, reach: Reach, tmp_path: Path) -> None:
    """The new servers have the addresses of old ones, so that old writers and learners reach them."""
    servers = in_order(start_server("--checkpoint-dir", str(tmp_path / str(number))) for number in range(3))
    client = reach(servers, timeout_s=2.0)
    table = client.create_table("t", columns=COLUMNS, capacity=CAPACITY)
    keys = table.insert(rows(np.arange(50)))
    with ExitStack() as closing:
        writer = table.writer(reconnect_timeout_s=1.0)
        closing.callback(writer.abort)
        sampler = closing.enter_context(table.sampler(8, beta=0.4, reconnect_timeout_s=1.0))
        writer.append(number=50, obs=np.zeros(3))
        writer.flush()
        next(sampler)
        made = client.checkpoint()
        writer.append(number=51, obs=np.zeros(3))
        writer.flush()  # acknowledged, but not in the checkpoint
        for server in servers:
            server.kill()
        addresses = [server.address for server in servers[:2]]
        restored([part.directory for part in made.parts.values()], addresses, tmp_path / "out", start_server)
        writer.append(number=52, obs=np.zeros(3))
        with pytest.raises(ReplayError):
            writer.flush(timeout_s=2.0)
        with pytest.raises(ReplayError):
            list(sampler)
        with pytest.raises(ReplayError):
            table.insert(rows(np.arange(53, 54)))
        with pytest.raises(ReplayError):
            table.update_priorities(keys, np.full(50, 9.0))
        again = ReplayClient(addresses[0])
        closing.callback(again.close)
        found = contents(again.table("t"))
        assert sorted(found.rows) == list(range(51))
        assert {row.priority for row in found.rows.values()} == {1.0}


def test_a_writer_that_began_without_a_server_does_not_go_over_to_the_new_ones(
    start_server: Start, reach: Reach, tmp_path: Path
) -> None:
    """Such a writer looks for servers again and again. The new map has the same version as the old one."""
    servers = in_order(start_server("--checkpoint-dir", str(tmp_path / str(number))) for number in range(3))
    client = reach(servers)
    client.create_table("t", columns=COLUMNS, capacity=CAPACITY).insert(rows(np.arange(50)))
    made = client.checkpoint()
    servers[2].kill()
    table = reach(servers[:2], timeout_s=2.0).table("t")
    writer = table.writer(reconnect_timeout_s=1.0)
    try:
        for server in servers[:2]:
            server.kill()
        addresses = [server.address for server in servers]
        restored([part.directory for part in made.parts.values()], addresses, tmp_path / "out", start_server)
        writer.append(number=50, obs=np.zeros(3))
        with pytest.raises(ReplayError):
            writer.flush(timeout_s=3.0)
        assert len(reach(servers).table("t")) == 50
        assert len(shards_of(table)) == 2
    finally:
        writer.abort()
