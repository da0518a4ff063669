"""`replay-reshard` without servers: rows and counters of the new parts, what is refused, and what a kill leaves."""

from __future__ import annotations

import asyncio
import errno
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from replay_proto.errors import FieldError
from replay_proto.framing import Array
from replay_proto.rate_limit import RateLimit, divided
from replay_proto.schema import Column, Schema
from replay_proto.steps import Next, Stack, Steps, Transitions
from replay_server.checkpoint.manifest import CheckpointManifest
from replay_server.checkpoint.reading import restore
from replay_server.checkpoint.snapshot import take_snapshots
from replay_server.checkpoint.writing import ChecksummedFile, write_checkpoint, write_manifest
from replay_server.resharding import old_rows
from replay_server.resharding.command import run
from replay_server.resharding.dividing import new_states
from replay_server.resharding.merging import pieces
from replay_server.resharding.parts import read_parts
from replay_server.resharding.placing import placement_of
from replay_server.storage.runs import GOES_ON, TERMINATED
from replay_server.storage.shard_map import Shard, ShardMap
from replay_server.storage.table_config import TableConfig
from replay_server.storage.table_directory import TableDirectory
from replay_server.storage.table_state import TableState
from replay_server.table.limiter import Counters, difference
from replay_server.table.table import NewRows, Table

from tests.support.examples import examples
from tests.support.inserting import insert_all
from tests.support.invariants import check_table
from tests.support.rows import WHOLE, columns_of
from tests.support.step_oracle import ENDS, runs_of

MAP = ShardMap(b"service-uid-0001", 4, tuple(Shard(number, f"old-{number}:1", "active") for number in (0, 2, 5)))
WHOLE_UID = b"whole-table-0001"
PLAIN = TableConfig("t", WHOLE, 100, whole_capacity=300, whole_shards=(0, 2, 5))
STEPS = Steps(Transitions(2), {"pair": Stack("value", 2), "next": Next("value")}, Schema({"value": Column("int64")}))
NAME = "checkpoint-000007"
NEW = ["--to", "new-0:1,new-1:1"]


class Row(NamedTuple):
    """A live row."""

    priority: float
    """-1.0 if it cannot be drawn."""
    link: tuple[int, ...]


def live(table: Table) -> dict[int, Row]:
    """The live rows of a table by their values, oldest first, after checking the table."""
    check_table(table)
    keys = np.arange(table.oldest, table.inserted)
    columns: dict[str, Array] = {
        name: np.empty((len(keys), *column.shape), column.dtype) for name, column in table.config.schema.items()
    }
    table.directory.rows.gather(keys, columns)
    if table.config.schema == WHOLE:
        assert all(
            (values == columns[name]).all()
            for name, values in columns_of(np.asarray(columns["value"], np.int64)).items()
        )
    links, priorities = table.directory.rows.links(keys).tolist(), table.priorities(keys).tolist()
    rows = zip(columns["value"].tolist(), priorities, links, strict=True)
    return {value: Row(priority, tuple(link)) for value, priority, link in rows}


def write_part(
    folder: Path, *tables: Table, shards: ShardMap | None = MAP, shard_id: int | None = None, name: str = NAME
) -> Path:
    """Write a part of a checkpoint, and close the tables."""
    part = folder / name
    part.mkdir(parents=True)
    write_checkpoint(part, asyncio.run(take_snapshots(tables)), 1.0, threading.Event(), shards, shard_id)
    for table in tables:
        table.close()
    return part


def table_in(folder: Path, config: TableConfig, uid: bytes | None = None) -> Table:
    folder.mkdir(parents=True, exist_ok=True)
    return Table(TableDirectory.create(folder, config, uid=uid))


def filled(folder: Path, number: int, config: TableConfig = PLAIN, rows: int = 40) -> Table:
    """Part ``number`` of a table; its rows have values from ``1000 * number`` on, and priorities like them."""
    is_first = number == 0 or not config.whole_shards
    config = config if is_first else replace(config, whole_uid=WHOLE_UID)
    table = table_in(folder / "tables" / str(number), config, uid=WHOLE_UID if is_first else None)
    values = np.arange(rows) + 1000 * number
    insert_all(table, NewRows(columns_of(values), rows, values / 7))
    return table


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """Parts of three servers with 40 rows each."""
    return [
        write_part(tmp_path / str(number), filled(tmp_path, number), shard_id=shard.id)
        for number, shard in enumerate(MAP.shards)
    ]


def reshard(parts: Sequence[Path], out: Path, *flags: str) -> int:
    return run([*map(str, parts), "--out", str(out), *(flags or NEW)])


def parts_in(out: Path) -> list[Path]:
    """The parts for the new servers, which have the name of the checkpoint."""
    return [part / NAME for part in sorted(out.iterdir())]


def restored(out: Path) -> Iterator[Table]:
    """Restore the table of each new part, and check that the part has no writers."""
    for part in parts_in(out):
        with tempfile.TemporaryDirectory() as folder:
            (restored_table,) = restore(part, Path(folder)).tables
            table = Table(TableDirectory.open(Path(folder) / restored_table.config.name))
            assert table.directory.writers.used() == b""
            yield table
            table.close()


# Rows.


def test_rows_are_dealt_out_in_their_order(parts: list[Path], tmp_path: Path) -> None:
    assert reshard(parts, tmp_path / "out") == 0
    first, second = map(live, restored(tmp_path / "out"))
    interleaved = [number * 1000 + row for row in range(40) for number in range(3)]
    assert list(first) == interleaved[::2]
    assert list(second) == interleaved[1::2]
    assert all(row.priority == value / 7 for value, row in (first | second).items())
    manifests = [CheckpointManifest.load(part) for part in parts_in(tmp_path / "out")]
    assert [manifest.shard_id for manifest in manifests] == [6, 7], "ids follow those of the old servers"
    assert manifests[0].shards == manifests[1].shards
    assert manifests[0].shards is not None
    assert manifests[0].shards.uid != MAP.uid
    assert [(shard.id, shard.address, shard.state) for shard in manifests[0].shards.shards] == [
        (6, "new-0:1", "active"),
        (7, "new-1:1", "active"),
    ]
    configs = [manifest.tables[0].config for manifest in manifests]
    uids = [manifest.tables[0].uid for manifest in manifests]
    assert [config.capacity for config in configs] == [150, 150]
    assert configs[0] == replace(PLAIN, capacity=150, whole_shards=(6, 7))
    assert configs[1] == replace(configs[0], whole_uid=uids[0])
    assert len({WHOLE_UID, *uids}) == 3


@given(sizes=st.lists(st.integers(0, 60), min_size=1, max_size=4), at_once=st.integers(1, 50))
def test_shards_are_merged_in_proportion_to_their_sizes(sizes: list[int], at_once: int) -> None:
    rows = [(shard, row) for shard, size in enumerate(sizes) for row in range(size)]
    merged: list[tuple[int, int]] = []
    for piece in pieces(sizes, at_once):
        assert len(piece.rows) <= at_once + len(sizes)
        assert all(before < piece.end for before in piece.positions)
        merged += zip(piece.shards.tolist(), piece.rows.tolist(), strict=True)
    assert merged == sorted(rows, key=lambda each: ((each[1] + 0.5) / sizes[each[0]], each[0]))


RUNS = st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 4), st.integers(1, 6), st.sampled_from(ENDS))
"""Stream, episode, how the run begins (0: with step 0; 1: with a gap; otherwise: where the episode is), rows, end."""


@settings(max_examples=examples(15))
@given(
    parts=st.lists(st.lists(RUNS, max_size=10), min_size=2, max_size=3), new=st.integers(1, 4), piece=st.integers(1, 20)
)
@example(parts=[[(0, 1, 0, 3, GOES_ON), (0, 0, 0, 5, TERMINATED), (0, 1, 2, 3, GOES_ON)], []], new=2, piece=20)
def test_the_same_windows_can_be_drawn(parts: list[list[tuple[int, ...]]], new: int, piece: int) -> None:
    """Streams may return to earlier episodes, skip steps, or end: all that a server accepts after a restart."""
    check_windows(parts, piece, new)


IN_ORDER = st.tuples(st.integers(0, 2), st.integers(1, 6), st.sampled_from(ENDS))
"""Stream, number of rows, end. A run continues the episode of its stream unless the run before has closed it."""


@settings(max_examples=examples(10))
@given(
    parts=st.lists(st.lists(IN_ORDER, min_size=6, max_size=14), min_size=2, max_size=2),
    counts=st.lists(st.integers(1, 3), min_size=2, max_size=4).map(lambda counts: [2, *counts]),
    piece=st.integers(1, 20),
)
def test_a_stream_whose_episodes_are_in_several_parts_is_put_together(
    parts: list[list[tuple[int, ...]]], counts: list[int], piece: int
) -> None:
    """The first resharding spreads the episodes of each stream over the new shards."""
    runs: list[list[tuple[int, ...]]] = []
    for part in parts:
        episodes, is_open = [0, 0, 0], [False, False, False]
        runs.append([])
        for stream, count, end in part:
            runs[-1].append((stream, episodes[stream], 2 if is_open[stream] else 0, count, end))
            episodes[stream] += end != GOES_ON
            is_open[stream] = end == GOES_ON
    check_windows(
        runs, piece, *(count for count, before in zip(counts, [0, *counts], strict=False) if (count, before) != (1, 1))
    )


def check_windows(parts: list[list[tuple[int, ...]]], piece: int, *counts: int) -> None:
    """Reshard parts of a table of steps, for these numbers of servers in turn, and compare all rows each time.

    Parts with more than 25 rows have evicted some.
    """
    shards = replace_shards(len(parts))
    config = TableConfig("t", STEPS.schema, 25, steps=STEPS, whole_capacity=2000, whole_shards=shards.ids)
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        patch.setattr(old_rows, "_PIECE_BYTES", piece * 40)
        before: dict[int, Row] = {}
        folders = []
        for number, runs in enumerate(parts):
            table = part_of_steps(folder, number, config, runs)
            before |= live(table)
            folders.append(write_part(folder / str(number), table, shards=shards.map))
        for number, count in enumerate(counts):
            out = folder / f"out-{number}"
            assert reshard(folders, out, "--to", new_addresses(count)) == 0
            found = list(map(live, restored(out)))
            assert together(found) == before
            if not number:
                for rows in found:  # of each old part, in order
                    for part in range(len(parts)):
                        own = [value for value in rows if value // 1000 == part]
                        assert own == sorted(own)
            longest = max((sum(run[3] for run in runs) for runs in parts), default=0)
            assert max(map(len, found)) - min(map(len, found)) <= longest
            folders = parts_in(out)


def test_rows_that_wait_for_others_are_not_read_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Episode 1 of a stream is at the start of one part, but episode 0 is at the end of another."""
    monkeypatch.setattr(old_rows, "_PIECE_BYTES", 20 * 40)
    shards = replace_shards(2)
    config = TableConfig("t", STEPS.schema, 90, steps=STEPS, whole_capacity=180, whole_shards=shards.ids)
    runs = [[(11, 0, 0, 40, TERMINATED), (10, 0, 0, 5, TERMINATED)], [(0, 1, 0, 60, TERMINATED)]]
    tables = [part_of_steps(tmp_path, number, config, runs[number]) for number in range(2)]
    parts = [write_part(tmp_path / str(number), table, shards=shards.map) for number, table in enumerate(tables)]
    rows = old_rows.OldRows(read_parts(parts, partial=False).tables[0])
    read_at_once = [len(placed.rows) for placed in placement_of(rows, 1).pieces()]
    assert sum(read_at_once) == 105
    assert max(read_at_once) <= rows.at_once


def together(parts: Sequence[Mapping[int, Row]]) -> dict[int, Row]:
    """The rows of all parts, each of which must be in one part."""
    rows = {value: row for part in parts for value, row in part.items()}
    assert sum(map(len, parts)) == len(rows)
    return rows


def new_addresses(count: int) -> str:
    return ",".join(f"new:{number + 1}" for number in range(count))


class Shards(NamedTuple):
    """A shard map, and its ids."""

    map: ShardMap
    ids: tuple[int, ...]


def replace_shards(count: int) -> Shards:
    shards = tuple(Shard(number, f"old-{number}:1", "active") for number in range(count))
    return Shards(MAP._replace(shards=shards), tuple(range(count)))


def part_of_steps(folder: Path, number: int, config: TableConfig, runs: Sequence[tuple[int, ...]]) -> Table:
    """A part of a table of steps with those of the runs that the server accepts, opened anew before each."""
    config = config if not number else replace(config, whole_uid=WHOLE_UID)
    table = table_in(folder / "tables" / str(number), config, uid=None if number else WHOLE_UID)
    random, next_steps = np.random.default_rng(number), dict[tuple[int, int], int]()
    for stream, episode, begin, count, end in runs:
        first_step = next_steps.get((stream, episode), 0) + (begin == 1) if begin else 0
        next_steps[stream, episode] = first_step + count
        values = {"value": np.arange(table.inserted, table.inserted + count) + 1000 * number}
        run_of_rows = runs_of((stream + 10 * number, episode, first_step, count, end))
        with suppress(FieldError):
            priorities = random.gamma(1.0, 1.0, table.priorities_of(count, run_of_rows))
            table.insert(NewRows(values, count, priorities, run_of_rows), None)
        path = table.directory.folder
        table.close()
        table = Table(TableDirectory.open(path))
    return table


def test_episodes_are_balanced_and_the_oldest_rows_make_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Five episodes of 30 rows fill the table, and one of two shards gets three of them."""
    config = TableConfig("t", STEPS.schema, 150, steps=STEPS)
    table = table_in(tmp_path / "tables", config)
    for episode in range(5):
        values = {"value": np.arange(30) + 30 * episode}
        table.insert(NewRows(values, 30, None, runs_of((1, episode, 0, 30, 2))), None)
    part = write_part(tmp_path, table, shards=None)
    assert reshard([part], tmp_path / "out") == 0
    first, second = map(live, restored(tmp_path / "out"))
    assert list(first) == [*range(15, 30), *range(60, 90), *range(120, 150)]
    assert list(second) == [*range(30, 60), *range(90, 120)]
    drawable = [value for value, row in first.items() if row.priority >= 0]
    assert min(drawable) == 16, "the window of row 15 begins with row 14"
    assert "table t: the oldest 15 rows do not fit" in capsys.readouterr().out


# Counters.


@given(
    old=st.lists(st.tuples(*[st.integers(0, 50)] * 4), min_size=1, max_size=4),
    shares=st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any),
    capacity=st.integers(1, 60),
    ratio=st.sampled_from([None, 0.25, 1.0, 7.5]),
)
def test_counters_are_divided(
    old: list[tuple[int, ...]], shares: list[int], capacity: int, ratio: float | None
) -> None:
    states = [
        TableState(counted_from + lost + rows, counted_from + lost, counted_from, 0, sampled)
        for counted_from, lost, rows, sampled in old
    ]
    rows = sum(state.inserted - state.floor for state in states)
    bounds = np.floor(np.cumsum([0, *shares]) * rows / sum(shares)).astype(int)
    sizes = np.diff(bounds).tolist()
    limit = None if ratio is None else RateLimit(1, ratio, -100.0, 100.0)
    config = TableConfig("t", WHOLE, capacity, rate_limit=limit)
    new = new_states(states, config, sizes)
    for state, size in zip(new, sizes, strict=True):
        state.check(0)
        assert state.oldest(capacity, 0) == state.floor
        assert state.inserted - state.floor == min(size, capacity)
    assert sum(state.sampled for state in new) == sum(state.sampled for state in states)
    counted = [sum(each.inserted - each.counted_from for each in every) for every in (states, new)]
    assert counted[0] == counted[1]
    if len(new) > 1:
        assert sum(state.inserted for state in new) == sum(state.inserted for state in states)
    else:
        assert new[0].floor >= max(state.inserted for state in states), "old keys are stale"
    if limit is not None:
        differences = [
            difference(limit, Counters(1, state.inserted - state.counted_from, state.sampled)) for state in new
        ]
        assert max(abs(each - np.mean(differences)) for each in differences) <= 1.0 + 1e-9


@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_rate_limit_is_divided_anew(tmp_path: Path, count: int) -> None:
    limit = RateLimit(10, 2.0, -15.0, 45.0)
    config = replace(PLAIN, rate_limit=limit)
    parts = [write_part(tmp_path / str(number), filled(tmp_path, number, config)) for number in range(3)]
    assert reshard(parts, tmp_path / "out", "--to", new_addresses(count)) == 0
    for table in restored(tmp_path / "out"):
        assert table.config.rate_limit == RateLimit(-(-30 // count), 2.0, -45.0 / count, 135.0 / count)
        assert table.config.capacity == 300 // count
        assert table.config.whole_capacity == (0 if count == 1 else 300)


def test_the_narrowest_bounds_are_the_same_on_as_many_servers(tmp_path: Path) -> None:
    """A seventh of them is rounded, so the sum of seven is smaller."""
    limit = divided(RateLimit(1, 1.0, -6.0, 8.0), 7)
    config = replace(PLAIN, rate_limit=limit, whole_shards=tuple(range(7)))
    part = write_part(tmp_path / "old", filled(tmp_path, 0, config), shards=replace_shards(7).map)
    assert reshard([part], tmp_path / "out", "--to", new_addresses(7), "--partial") == 0
    assert {table.config.rate_limit for table in restored(tmp_path / "out")} == {limit}


# What is refused.


def changed(part: Path, **fields: Any) -> None:
    """Change a part's manifest."""
    manifest = replace(CheckpointManifest.load(part), **fields)
    (part / "_checkpoint.json").unlink()
    write_manifest(part, manifest)


def with_config(part: Path, **fields: Any) -> None:
    """Change the config of a part's table."""
    (table,) = CheckpointManifest.load(part).tables
    changed(part, tables=[replace(table, config=replace(table.config, **fields))])


def damage(parts: list[Path]) -> list[Path]:
    path = parts[1] / "t" / "column-000.bin"
    content = bytearray(path.read_bytes())
    content[7] ^= 1
    path.write_bytes(content)
    return parts


def without_ids(parts: list[Path]) -> list[Path]:
    for part in parts:
        changed(part, shard_id=None)
    return parts[1:]


def renamed(parts: list[Path]) -> list[Path]:
    return [*parts[:2], parts[2].rename(parts[2].with_name("nightly-000007"))]


def copied(parts: list[Path]) -> list[Path]:
    copy = parts[0].parent.parent / "copy" / NAME
    shutil.copytree(parts[1], copy)
    return [*parts[:2], copy]


def retired(shards: Sequence[Shard]) -> list[Shard]:
    return [shards[0]._replace(state="retired"), *shards[1:]]


def done(parts: list[Path], change: Callable[..., None], **fields: Any) -> list[Path]:
    change(parts[1], **fields)
    return parts


REFUSALS: Mapping[str, tuple[Callable[[list[Path]], list[Path]], str]] = {
    "no folder": (lambda parts: [*parts[:2], parts[2] / "absent"], "2/.*absent', which is missing"),
    "no part": (lambda parts: [*parts[:2], parts[2] / "t"], "2/.*, which has no _checkpoint.json"),
    "a corrupt column": (damage, "1/.*/t/column-000.bin: expected .* bytes of checksum"),
    "a part too few": (lambda parts: [parts[0], parts[2]], "lacks the parts of shard 2 at old-2:1; got .*--partial"),
    "a part too few, without ids": (
        without_ids,
        "lacks 1 of these parts: shard 0 at old-0:1, shard 2 at old-2:1, shard",
    ),
    "a part twice": (lambda parts: [*parts[:2], parts[1]], "1/.* of shard 2 and .*1/.* of shard 2, which are one"),
    "a copy of a part": (copied, "which are one"),
    "a part of another checkpoint": (renamed, "the same name, got .*0/.* and .*2/nightly-000007 of shard 5"),
    "parts of two checkpoints of a server": (
        lambda parts: [*parts, shutil.copytree(parts[0], parts[0].with_name("nightly-000008"))],
        "the same name, got .*/0/.* and .*/0/nightly-000008",
    ),
    "a part of another service": (
        lambda parts: done(parts, changed, shards=MAP._replace(uid=b"service-uid-0002")),
        "1/.* of other servers than .*0/",
    ),
    "a part without a map": (
        lambda parts: done(parts, changed, shards=None, shard_id=None),
        "1/.*, which has no shard map",
    ),
    "a part too many": (
        lambda parts: done(
            [*without_ids(parts), parts[0]], changed, shards=MAP._replace(version=5, shards=MAP.shards[:2])
        ),
        "expected the parts of 2 servers, got 3",
    ),
    "a part of a server that was retired": (
        lambda parts: done(
            parts, changed, shards=MAP._replace(version=5, shards=(*retired(MAP.shards), Shard(6, "old-6:1", "active")))
        ),
        "expected parts of shards 2, 5, 6, got .*0/.* of shard 0, which is not in use",
    ),
    "another config": (lambda parts: done(parts, with_config, parameters={"alpha": 0.1}), "in .*1/.*/t 0.1"),
    "an earlier table": (
        lambda parts: done(parts, with_config, whole_uid=b"dropped-table-01"),
        "tables that were created one after the other: .*/2/.*/1/",
    ),
    "a dropped table": (
        lambda parts: done(parts, changed, tables=[]),
        "expected it in 3 parts, found it only in .*0/.*2/",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_wrong_parts_are_refused(
    parts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    change, message = REFUSALS[case]
    given_parts = change(parts)
    before = sorted(tmp_path.rglob("*"))
    assert reshard(given_parts, tmp_path / "out") == 1
    check_said(capsys, message)
    assert sorted(tmp_path.rglob("*")) == before, "something was written"


def check_said(capsys: pytest.CaptureFixture[str], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(capsys.readouterr().err)


CONFIGS = {
    "a queue": (TableConfig("t", WHOLE, 100, "fifo"), "backend: .*a queue has one order"),
    "narrow bounds": (
        TableConfig("t", WHOLE, 100, rate_limit=RateLimit(1, 1.0, 0.0, 3.0)),
        "table 't' on 2 servers: error_buffer",
    ),
    "a min_size that no row can reach": (
        TableConfig("t", STEPS.schema, 100, steps=STEPS, rate_limit=RateLimit(99)),
        "table 't' on 2 servers: min_size: expected at most 49, .* got 50",
    ),
    "long windows": (TableConfig("t", STEPS.schema, 5, steps=STEPS), "table 't' on 2 servers: capacity: .* at least 4"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_tables_that_cannot_be_divided_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    config, message = CONFIGS[case]
    part = write_part(tmp_path / "old", table_in(tmp_path / "tables", config), shards=None)
    assert reshard([part], tmp_path / "out") == 1
    check_said(capsys, message)
    assert not (tmp_path / "out").exists()


def test_an_episode_in_two_parts_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its rows would come between each other."""
    shards = replace_shards(2)
    config = TableConfig("t", STEPS.schema, 90, steps=STEPS, whole_capacity=180, whole_shards=shards.ids)
    runs = [[(10, 0, 0, 5, 0)], [(0, 0, 0, 5, 0)]]
    tables = [part_of_steps(tmp_path, number, config, runs[number]) for number in range(2)]
    parts = [write_part(tmp_path / str(number), table, shards=shards.map) for number, table in enumerate(tables)]
    assert reshard(parts, tmp_path / "out") == 1
    check_said(capsys, "stream 10 has rows of one episode in several of these: .*0/.*, .*1/")
    assert not (tmp_path / "out").exists()


def test_wrong_addresses_are_refused(parts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        reshard(parts, tmp_path / "out", "--to", "new")
    check_said(capsys, "expected HOST:PORT")
    for addresses, message in (("new:1,new:1", "'new:1' twice"), (f"{'n' * 300}:1,new:2", "1 to 256 characters")):
        assert reshard(parts, tmp_path / "out", "--to", addresses) == 1
        check_said(capsys, message)


def test_paths_that_cannot_be_looked_up_are_refused(
    parts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    too_long = tmp_path / ("n" * 300)
    assert reshard(parts, too_long) == 1
    check_said(capsys, "replay-reshard: .*File name too long")
    assert reshard([*parts[:2], too_long], tmp_path / "out") == 1
    check_said(capsys, "replay-reshard: .*File name too long")


def test_the_output_must_be_a_new_folder(parts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    assert reshard(parts, tmp_path / "out") == 1
    check_said(capsys, "--out: expected a new folder in an existing one, got .*/out")
    assert reshard(parts, tmp_path / "absent" / "out") == 1
    check_said(capsys, "expected a new folder in an existing one, got .*/absent/out")


def test_one_server_instead_of_one_needs_no_resharding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = write_part(tmp_path / "alone", table_in(tmp_path / "tables", TableConfig("t", WHOLE, 9)), shards=None)
    assert reshard([alone], tmp_path / "new", "--to", "new:1") == 1
    check_said(capsys, "is of one server already")


def test_the_result_can_be_resharded_again(parts: list[Path], tmp_path: Path) -> None:
    assert reshard(parts, tmp_path / "two", "--to", "new-0:1, new-1:1") == 0
    assert reshard(parts_in(tmp_path / "two"), tmp_path / "one", "--to", "new:1") == 0
    assert reshard(parts_in(tmp_path / "one"), tmp_path / "three", "--to", "new:1,new:2,new:3") == 0
    assert sum(len(live(table)) for table in restored(tmp_path / "three")) == 120
    (table,) = restored(tmp_path / "one")
    assert table.config == replace(PLAIN, capacity=300, whole_capacity=0, whole_shards=())


def test_missing_parts_can_be_given_up(parts: list[Path], tmp_path: Path) -> None:
    assert reshard(parts[1:], tmp_path / "out", *NEW, "--partial") == 0
    assert sum(len(live(table)) for table in restored(tmp_path / "out")) == 80


# All or nothing.


@pytest.mark.parametrize("place", ["ChecksummedFile", "write_manifest", "Path.rename"])
def test_a_killed_run_leaves_no_part(parts: list[Path], tmp_path: Path, place: str) -> None:
    program = (
        "import os, sys\nfrom replay_server.resharding import command, writing\n"
        f"writing.{place} = lambda *_: os.kill(os.getpid(), 9)\ncommand.run(sys.argv[1:])"
    )
    (tmp_path / "new").mkdir()
    arguments = [*map(str, parts), "--out", str(tmp_path / "new" / "out"), *NEW]
    killed = subprocess.run([sys.executable, "-c", program, *arguments], check=False, capture_output=True, timeout=60)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (partial,) = (tmp_path / "new").iterdir()
    assert partial.name.startswith(".partial-out-")
    assert run(arguments) == 0
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["out"], "the next run removes what was left"


def test_a_full_disk_leaves_nothing(
    parts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(file: ChecksummedFile, values: Array) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ChecksummedFile, "write", full)
    (tmp_path / "new").mkdir()
    assert reshard(parts, tmp_path / "new" / "out") == 1
    check_said(capsys, "--out: .*/new/out cannot be written: .* No space left on device")
    assert list((tmp_path / "new").iterdir()) == []
