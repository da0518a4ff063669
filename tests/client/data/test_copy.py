"""``replay copy``: tables between services of one, two and three servers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from replay_client import (
    Column,
    Next,
    ReplayClient,
    ServerUnavailableError,
    Stack,
    Table,
    TableExistsError,
    Transitions,
)
from replay_client.cli.app import run
from replay_client.sync.copying import prepared
from replay_client.sync.progress import progress_lines

from tests.client.shards.conftest import shards_of
from tests.support.access import ALL, WRITE, WRONG, Authority, tls_flags, write_usual_tokens
from tests.support.deadlines import wait_until
from tests.support.formulas import probabilities
from tests.support.server_process import ServerProcess

Services = Callable[[int], ReplayClient]
Start = Callable[..., ServerProcess]
COMMAND = "from replay_client.cli import main; main()"
COLUMNS = {"number": Column("int64"), "obs": Column("float32", 3)}
PLAIN: dict[str, Any] = {"columns": COLUMNS, "capacity": 3000, "alpha": 0.7, "seed": 1, "min_size": 6}
STEPS: dict[str, Any] = {
    "columns": {"number": Column("int64"), "pair": Stack("number", 2), "next": Next("number")},
    "capacity": 1200,
    "steps": Transitions(2),
}
LONGEST = 20
"""Most rows of an episode."""


class Row(NamedTuple):
    """All that a table keeps of a row, except its key."""

    values: tuple[bytes, ...]
    priority: float | None
    """None if it cannot be drawn."""
    link: tuple[int, ...]
    stream: int


@pytest.fixture
def service(start_server: Start) -> Iterator[Services]:
    """Starts services of some servers each, and returns clients of them."""
    made: list[ReplayClient] = []

    def start(servers: int) -> ReplayClient:
        made.append(ReplayClient(",".join(start_server().address for _ in range(servers))))
        return made[-1]

    yield start
    for client in made:
        client.close()


def contents(table: Table) -> dict[int, Row]:
    """All rows of a table by number, in order of their keys."""
    found: dict[int, Row] = {}
    for part in table.rows():
        links = [part.episodes, *([] if part.steps is None else [part.steps, part.ends])]
        for place, number in enumerate(part["number"].tolist()):
            assert number not in found, f"row {number} is there twice"
            found[number] = Row(
                tuple(column[place].tobytes() for column in part.columns.values()),
                None if np.isnan(part.priorities[place]) else float(part.priorities[place]),
                tuple(int(words[place]) for words in links if words is not None),
                int(part.streams[place]),
            )
    return found


def fill_plain(table: Table, rows: int = 1500) -> None:
    """Insert rows singly and by a writer with two streams, and give each a priority of its own."""
    half = np.arange(rows // 2)
    table.insert({"number": half, "obs": np.tile(half[:, None], 3)})
    with table.writer(streams=2) as writer:
        for number in range(rows // 2, rows):
            writer[number % 2].append(number=number, obs=np.full(3, number))
    rescore(table)


def fill_steps(table: Table, episodes: int = 70) -> None:
    """Write episodes of different lengths to two streams, whose last ones stay open."""
    number = 0
    with table.writer(streams=2) as writer:
        for episode in range(episodes):
            for _ in range(3 + (episode * 7) % (LONGEST - 4)):
                writer[episode % 2].append(number=number)
                number += 1
            if episode < episodes - 2:
                writer[episode % 2].end_episode(number=number)
                number += 1
    rescore(table)


FILLED: dict[str, tuple[dict[str, Any], Callable[..., None]]] = {
    "plain": (PLAIN, fill_plain),
    "steps": (STEPS, fill_steps),
}
"""The config of a table, and what fills it."""


def filled(client: ReplayClient, kind: str) -> Table:
    """Create and fill a table."""
    config, fill = FILLED[kind]
    table = client.create_table("t", **config)
    fill(table)
    return table


def rescore(table: Table) -> None:
    random = np.random.default_rng(3)
    for part in table.rows():
        table.update_priorities(part.row_keys, random.gamma(1.0, 2.0, len(part.row_keys)))


def assert_same(old: Table, new: Table, *, one_to_one: bool = True) -> None:
    """Check that all rows are the same and are drawn with the same probabilities.

    ``one_to_one``: streams are still the same, though they may have other numbers.
    """
    before, after = contents(old), contents(new)
    assert after.keys() == before.keys()
    for number, row in after.items():
        assert row[:3] == before[number][:3]
    pairs = {(before[number].stream, row.stream) for number, row in after.items()}
    assert len({stream for _, stream in pairs}) == len(pairs), "two streams became one"
    assert len({stream for stream, _ in pairs}) == len(pairs) or not one_to_one, "a stream became two"
    described = new.describe()
    assert (described.capacity, described.parameters) == (old.describe().capacity, old.describe().parameters)
    drawable = {number: row.priority for number, row in after.items() if row.priority is not None}
    exact = probabilities(described.backend, described.parameters, np.array(list(drawable.values())))
    by_number = dict(zip(drawable, exact.tolist(), strict=True))
    batch = new.sample(500, beta=0.4)
    np.testing.assert_allclose(
        batch.probabilities, [by_number[number] for number in batch["number"].tolist()], rtol=1e-12
    )


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2), (3, 1)])
def test_all_rows_are_drawn_as_before(
    service: Services, before: int, after: int, capsys: pytest.CaptureFixture[str]
) -> None:
    source, destination = service(before), service(after)
    plain = source.create_table("plain", **PLAIN)
    fill_plain(plain)
    steps = source.create_table("steps", **STEPS)
    fill_steps(steps)
    assert run(["copy", source.address, destination.address]) == 0
    assert capsys.readouterr().out == (f"copied 1,500 rows of table plain\ncopied {len(steps):,} rows of table steps\n")
    new = destination["plain"]
    assert_same(plain, new)
    assert {number: row.stream for number, row in contents(new).items()} == {
        number: row.stream for number, row in contents(plain).items()
    }
    assert_same(steps, destination["steps"])
    for table in (plain, steps):
        assert_in_order(table, destination[table.name])
    if before == 1:
        assert {row.stream for row in contents(destination["steps"]).values()} == {
            row.stream for row in contents(steps).values()
        }
    assert new.describe().rate_limit == plain.describe().rate_limit
    for name in ("plain", "steps"):  # once more, there is nothing to do
        assert run(["copy", source.address, destination.address, name, "--json"]) == 0
        rows = len(source[name])
        assert json.loads(capsys.readouterr().out) == [
            {"table": name, "rows": rows, "found": rows, "overtaken": 0, "evicted": 0}
        ]


def assert_in_order(old: Table, new: Table) -> None:
    """Check that each server has its rows in the order of their places in the old servers, to within 64 rows."""
    place: dict[int, float] = {}
    for keys in keys_by_shard(old).values():
        place |= {number: (index // 64 * 64 + 0.5) / len(keys) for index, number in enumerate(keys)}
    for numbers in keys_by_shard(new).values():
        assert numbers == sorted(numbers, key=place.__getitem__)


def keys_by_shard(table: Table) -> dict[int, list[int]]:
    """Numbers of the rows of each shard, in the order of their keys."""
    found: dict[int, list[int]] = {}
    for part in table.rows():
        for key, number in zip(part.row_keys.tolist(), part["number"].tolist(), strict=True):
            found.setdefault(key >> 48, []).append(number)
    return found


def test_copies_can_be_copied(service: Services) -> None:
    """A copy has episodes of one stream on several servers; a writer has not."""
    first, second, third = service(1), service(3), service(1)
    table = filled(first, "steps")
    for source, destination in ((first, second), (second, third)):
        prepared(source, destination, [])[0].run()
    assert_same(table, third["t"], one_to_one=False)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2), (3, 1)])
def test_what_was_published_is_read_as_before(service: Services, before: int, after: int) -> None:
    source, destination = service(before), service(after)
    weights = np.arange(50_000, dtype=np.float64)
    for factor in range(6):
        source.publish("policy", {"weights": weights * factor})
    prepared(source, destination, [])[0].run()
    version, values = destination.latest("policy", timeout_s=0)
    np.testing.assert_array_equal(values["weights"], weights * 5)
    assert destination.publish("policy", {"weights": weights}) == version + 1
    np.testing.assert_array_equal(destination.latest("policy", timeout_s=0).values["weights"], weights)


def test_nothing_is_copied_while_a_server_of_the_source_is_away(start_server: Start, service: Services) -> None:
    servers = [start_server() for _ in range(2)]
    address = ",".join(server.address for server in servers)
    with ReplayClient(address) as writer:
        filled(writer, "plain")
    servers[1].kill()
    destination = service(1)
    expected = pytest.raises(ServerUnavailableError, match=f"shard [01] at {servers[1].address}")
    with ReplayClient(address, timeout_s=2.0) as source, expected:
        prepared(source, destination, ["t"])
    assert list(destination) == []


def test_a_full_table_fits_servers_that_share_its_capacity(service: Services) -> None:
    """Single rows fill every server to the last row; of episodes, at most one per server does not fit."""
    source, destination = service(1), service(3)
    plain = source.create_table("plain", columns=COLUMNS, capacity=999)
    fill_plain(plain, rows=1200)
    steps = source.create_table("steps", **{**STEPS, "capacity": 300})
    fill_steps(steps)
    done = {copy.name: copy.run() for copy in prepared(source, destination, [])}
    assert_same(plain, destination["plain"])
    assert done["plain"].evicted == 0
    assert 0 < done["steps"].evicted <= 2 * LONGEST
    before, after = contents(steps), contents(destination["steps"])
    assert len(after) == 300 - done["steps"].evicted
    assert all(after[number][:1] == before[number][:1] for number in after)


@pytest.mark.parametrize("kind", FILLED)
def test_an_interrupted_copy_goes_on(service: Services, kind: str) -> None:
    source, destination = service(2), service(3)
    table = filled(source, kind)
    found = []
    for limit in (1, 120, 400, 600):
        (copy,) = prepared(source, destination, ["t"], rows_at_once=50)
        found.append(copy.found)
        with pytest.raises(KeyboardInterrupt):
            copy.run(interrupt_after(limit))
    (copy,) = prepared(source, destination, ["t"], rows_at_once=50)
    done = copy.run()
    assert [*found, done.found] == sorted({*found, done.found}), "it goes on from where it was"
    assert_same(table, destination["t"])


def interrupt_after(limit: int) -> Callable[[int], None]:
    done = 0

    def advance(rows: int) -> None:
        nonlocal done
        done += rows
        if done >= limit:
            raise KeyboardInterrupt

    return advance


@pytest.mark.parametrize("kind", FILLED)
def test_a_server_that_dies_in_the_middle_of_a_part_gets_each_row_once(
    service: Services, start_server: Start, kind: str, tmp_path: Path
) -> None:
    source = service(1)
    table = filled(source, kind)
    servers = [start_server("--data-dir", str(tmp_path / str(number))) for number in range(2)]
    addresses = ",".join(server.address for server in servers)
    with ReplayClient(addresses, timeout_s=0.5) as destination:
        (copy,) = prepared(source, destination, ["t"], rows_at_once=200)
        with pytest.raises(ServerUnavailableError):
            copy.run(lambda rows: servers[1].kill())
    servers[1].restart()
    with ReplayClient(addresses) as destination:
        (copy,) = prepared(source, destination, ["t"], rows_at_once=200)
        assert 100 <= copy.run().found < 400
        assert_same(table, destination["t"])


def test_a_killed_command_goes_on(service: Services, capsys: pytest.CaptureFixture[str]) -> None:
    source, destination = service(1), service(2)
    columns = {"number": Column("int64"), "obs": Column("float32", 200)}
    table = source.create_table("t", columns=columns, capacity=60_000)
    table.insert({"number": np.arange(60_000), "obs": np.ones((60_000, 200), np.float32)})
    command = subprocess.Popen([sys.executable, "-c", COMMAND, "copy", source.address, destination.address])
    try:
        wait_until(lambda: "t" in destination and destination["t"].describe().inserted > 0, "rows are there")
    finally:
        command.kill()
        command.wait()
    there = destination["t"].describe().inserted
    assert 0 < there < 60_000
    assert run(["copy", source.address, destination.address]) == 0
    said = capsys.readouterr().out
    assert said == f"copied 60,000 rows of table t, {there:,} of them earlier\n"
    numbers = np.concatenate([part["number"] for part in destination["t"].rows(columns=["number"])])
    np.testing.assert_array_equal(np.sort(numbers), np.arange(60_000))


@pytest.mark.parametrize("count", [30, 64, 100, 1500, 1501])
def test_a_table_with_rows_of_other_origin_is_refused_and_stays_as_it_is(service: Services, count: int) -> None:
    """A request of this copy has 64 rows, and all together 1500."""
    source, destination = service(1), service(1)
    filled(source, "plain")
    destination.create_table("t", **PLAIN).insert(rows(count))
    with pytest.raises(TableExistsError, match=f"table 't' at 127.* has {count:,} rows.* not only those of this copy"):
        prepared(source, destination, ["t"])[0].run()
    assert destination["t"].describe().inserted == count


def test_inserts_of_others_are_noticed_while_it_runs_and_when_it_goes_on(service: Services) -> None:
    source, destination = service(1), service(1)
    filled(source, "plain")
    (copy,) = prepared(source, destination, ["t"], rows_at_once=100)
    with pytest.raises(TableExistsError, match="has 200 rows before the next ones, instead of 100"):
        copy.run(lambda _: destination["t"].insert(rows(100)))
    for more in (0, 1236):  # in the end, it has as many rows as the source
        count = 264 + more
        if more:
            destination["t"].insert(rows(more))
        with pytest.raises(TableExistsError, match=f"has {count:,} rows, not only those of this copy"):
            prepared(source, destination, ["t"], rows_at_once=100)[0].run()
        assert destination["t"].describe().inserted == count


def test_a_shard_with_more_rows_than_it_gets_is_refused(service: Services) -> None:
    source, destination = service(1), service(2)
    filled(source, "plain")
    shards_of(destination.create_table("t", **PLAIN))[0].insert(rows(800))
    with pytest.raises(TableExistsError, match="has 800 rows instead of 7"):
        prepared(source, destination, ["t"])[0].run()


def rows(count: int) -> dict[str, Any]:
    return {"number": np.arange(count) + 10_000, "obs": np.zeros((count, 3))}


@pytest.mark.parametrize("change", ["insert", "evict"])
def test_a_copy_does_not_go_on_if_the_source_has_changed(service: Services, change: str) -> None:
    source, destination = service(1), service(2)
    table = source.create_table("t", columns=COLUMNS, capacity=1500 if change == "evict" else 2000)
    fill_plain(table)
    (copy,) = prepared(source, destination, ["t"], rows_at_once=100)
    with pytest.raises(KeyboardInterrupt):
        copy.run(interrupt_after(500))
    table.insert(rows(10))
    with pytest.raises(TableExistsError, match="or the source has inserted or evicted rows since the copy began"):
        prepared(source, destination, ["t"], rows_at_once=100)[0].run()
    destination["t"].drop()
    prepared(source, destination, ["t"])[0].run()
    assert_same(table, destination["t"])


@pytest.mark.parametrize("kind", FILLED)
def test_rows_that_the_source_evicts_meanwhile_are_counted(service: Services, kind: str) -> None:
    source, destination = service(1), service(2)
    table = source.create_table("t", **{**FILLED[kind][0], "capacity": 500})
    FILLED[kind][1](table)
    before = contents(table)
    (copy,) = prepared(source, destination, ["t"], rows_at_once=100)

    def evict(_: int) -> None:
        if table.describe().inserted < 2000:
            FILLED[kind][1](table, 20 if kind == "steps" else 300)

    done = copy.run(evict)
    after = contents(destination["t"])
    assert done.overtaken > 0
    assert len(after) + done.overtaken + done.evicted == done.rows == 500
    assert all(row.values == before[number].values for number, row in after.items())


def test_what_is_wrong_is_said_in_one_line(
    service: Services,
    start_server: Start,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, destination = service(1), service(2)
    one, other = source.address, destination.address
    closed = start_server("--tokens", str(write_usual_tokens(tmp_path / "tokens.toml"))).address
    source.create_table("mine-t", columns=COLUMNS, capacity=100).insert(rows(50))
    source.create_table("queue", columns=COLUMNS, capacity=100, backend="fifo")
    limited: dict[str, Any] = {"min_size": 30, "samples_per_insert": 4, "error_buffer": (0, 100)}
    source.create_table("ratio", columns=COLUMNS, capacity=100, **limited).insert(rows(26))
    source.create_table("differs", columns=COLUMNS, capacity=100)
    destination.create_table("differs", columns=COLUMNS, capacity=99)
    monkeypatch.setenv("REPLAY_TOKEN", ALL)
    for arguments, token, said in [
        ((one, other, "mine-t", "unknown"), "", "there is no table 'unknown'"),
        (
            (one, one, "mine-t"),
            "",
            f"destination: expected another service than the source, got {one} and {one}, which have",
        ),
        (
            (one, other),
            "",
            "tables: expected no queue: its readers remove the rows, so let them empty it, got table 'queue'",
        ),
        (
            (one, other, "ratio"),
            "",
            "table 'ratio' cannot be copied: samples_per_insert: expected None, or an error_buffer",
        ),
        ((one, other, "differs"), "", "capacity"),
        (
            (one, closed, "mine-t"),
            WRONG,
            "set REPLAY_TOKEN for the source, REPLAY_DESTINATION_TOKEN for the destination",
        ),
        ((one, closed, "mine-t"), WRITE, "admin"),
        ((one, "nowhere", "mine-t"), "", "(from DESTINATION)"),
    ]:
        monkeypatch.setenv("REPLAY_DESTINATION_TOKEN", token)
        assert run(["copy", *arguments]) == 1
        done = capsys.readouterr()
        assert said in done.err
        assert len(done.err.splitlines()) == 1, done.err
        assert done.err.startswith("replay: ")
    monkeypatch.setenv("REPLAY_DESTINATION_TOKEN", ALL)
    monkeypatch.setenv("REPLAY_TOKEN", "none")
    assert run(["copy", one, closed, "mine-t"]) == 0
    assert capsys.readouterr().out == "copied 50 rows of table mine-t\n"


def test_the_destination_may_have_tls_and_the_source_none(
    service: Services,
    start_server: Start,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, authority = service(1), Authority(tmp_path / "ca")
    closed = start_server(*tls_flags(authority.certify("server")))
    source.create_table("t", columns=COLUMNS, capacity=100).insert(rows(50))
    monkeypatch.setenv("REPLAY_DESTINATION_TLS_CA", str(authority.ca))
    assert run(["copy", source.address, closed.address]) == 0
    assert capsys.readouterr().out == "copied 50 rows of table t\n"
    monkeypatch.setenv("REPLAY_DESTINATION_TLS_CA", "nothing")
    assert run(["copy", source.address, closed.address]) == 1
    assert capsys.readouterr().err.endswith(" (from REPLAY_DESTINATION_TLS_CA)\n")


def test_progress_is_printed_in_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_lines("t", 2000, every_s=0.0) as advance:
        advance(500)
        advance(1500)
    first, last = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"t: 500 of 2,000 rows, [\d,]+ rows/s, 0:00:\d\d left", first)
    assert re.fullmatch(r"t: 2,000 of 2,000 rows, [\d,]+ rows/s, 0:00:00 left", last)
