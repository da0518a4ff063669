"""Mistakes of replay buffers that store each step once. Each test is named after what must not happen."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from replay_client import Column, Stack, StepStats, Table, TableEmptyError, Transitions
from replay_proto.steps import Item

from tests.client.steps.comparing import Place, assert_drawn, places
from tests.client.steps.numbered_episodes import COLUMNS, PER_ACTOR, episode_of, play, play_in_process
from tests.client.steps.planned_episodes import GOES_ON, PlannedEpisode, oracle_of
from tests.support.deadlines import wait_until
from tests.support.processes import loaded_processes
from tests.support.server_process import ServerProcess

ALL_DATA_PATHS = True

NewTable = Callable[..., Table]


def stored(table: Table, at: dict[int, Place]) -> dict[tuple[int, int], PlannedEpisode]:
    """The episodes in a table, as far as they are stored, by stream and number."""
    keys = np.array(list(at))
    actors = dict(zip(table.read(keys).streams.tolist(), (table.read(keys)["x"] // PER_ACTOR).tolist(), strict=True))
    lengths: dict[tuple[int, int], int] = {}
    for stream, number, step in at.values():
        lengths[stream, number] = max(step + 1, lengths.get((stream, number), 0))
    episodes = {}
    for (stream, number), length in lengths.items():
        whole = episode_of(actors[stream], number)
        rows = {name: values[:length] for name, values in whole.rows.items()}
        episodes[stream, number] = PlannedEpisode(rows, whole.end if length == len(whole) else GOES_ON)
    return episodes


def drawable(item: Item, made: dict[tuple[int, int], PlannedEpisode], at: dict[int, Place]) -> set[Place]:
    """The steps whose whole window is live."""
    live, found = set(at.values()), set()
    for place, episode in made.items():
        oracle = oracle_of(COLUMNS, item, episode)
        oracle.live = {row for row in oracle.rows if (*place, row.index) in live}
        found |= {(*place, step) for step in oracle.drawable()}
    return found


def check_all(table: Table, item: Item) -> int:
    """Draw every step that can be drawn, and compare all of it with the oracle; return how many there are."""
    at = places(table)
    made = stored(table, at)
    expected = drawable(item, made, at)
    if not expected:
        with pytest.raises(TableEmptyError):
            table.sample(1, beta=0.0)
        return 0
    batch = table.sample(2 * len(expected) + 1, beta=0.0)  # of equal priorities, each is in one segment at least
    assert assert_drawn(batch, COLUMNS, item, made, at) == expected
    assert batch.drawable == len(expected)
    return len(expected)


def test_windows_do_not_cross_the_write_cursor(new_table: NewTable) -> None:
    item, wraps = Transitions(3, 0.9), 20
    table = new_table(columns=COLUMNS, steps=item, backend="uniform", capacity=50)
    slots = 50 + 64
    with table.writer(streams=2, block_rows=5) as writer:
        actors = [play(writer[stream], stream) for stream in range(2)]
        while table.describe().inserted < wraps * slots:
            for _ in range(23):
                for actor in actors:
                    next(actor)
            writer.flush()
            assert check_all(table, item) > 0


def test_the_newest_step_has_no_stale_or_blank_next(new_table: NewTable) -> None:
    item = Transitions(1)
    table = new_table(columns=COLUMNS, steps=item, backend="uniform", capacity=10)
    with table.writer() as writer:
        for _, _ in zip(range(100), play(writer[0], 0), strict=False):  # slots of the ring are used again after 74
            writer.flush()
            check_all(table, item)


@pytest.mark.parametrize(
    ("key", "what"), [(1, "evicted"), (2, "broken"), (4, "closing"), (6, "pending"), (7, "pending"), (8, "not issued")]
)
def test_late_updates_do_not_resurrect_rows(new_table: NewTable, key: int, what: str) -> None:
    columns = {"x": Column("int64"), "stack": Stack("x", 2)}
    table = new_table(columns=columns, steps=Transitions(2), capacity=6)
    with table.writer(streams=2, block_rows=1) as writer:
        for x in (0, 1, 2):
            writer[0].append(x=x)
        writer[1].append(x=3)
        writer[1].end_episode(x=4)
        for x in (5, 6, 7):
            writer[0].append(x=x)
        writer.flush()
        assert table.stats().steps == StepStats(drawable=2, pending=2, broken=1, closing=1), what
        before = table.sample(10, beta=0.0)
        result = table.update_priorities([key], [1e6])
        assert (result.updated, result.stale) == (0, 1)
        after = table.sample(10, beta=0.0)
        assert set(after.row_keys.tolist()) == {3, 5}
        assert after.total_mass == before.total_mass
        writer[0].append(x=8)  # completes the step with key 6
        writer.flush()
        assert table.read([6]).priorities.tolist() == [1.0]


def test_interleaved_and_killed_writers_do_not_mix_their_episodes(server: ServerProcess, new_table: NewTable) -> None:
    item, rng = Transitions(3, 0.9), np.random.default_rng(1)
    table = new_table(columns=COLUMNS, steps=item, backend="uniform", capacity=5000)
    processes = [
        loaded_processes().Process(target=play_in_process, args=(server.address, table.name, actor))
        for actor in range(8)
    ]
    try:
        for process in processes:
            process.start()
        wait_until(lambda: len(set(table.read(np.arange(len(table))).streams.tolist())) == 8, "all of them write")
        for number in rng.permutation(8):
            until = len(table) + int(rng.integers(1, 40))
            wait_until(lambda until=until: len(table) >= until, "they write")  # type: ignore[misc]
            processes[number].kill()
    finally:
        for process in processes:
            process.kill()
            process.join()
    at = places(table)
    for place, episode in stored(table, at).items():
        assert all((*place, step) in at.values() for step in range(len(episode))), "a step is missing"
    assert check_all(table, item) > 0
