"""Ten mistakes of replay buffers that store each step once. Each test is named after what must not happen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from replay_client import (
    Column,
    Discount,
    InvalidArgumentError,
    Mask,
    Next,
    ReplayClient,
    Return,
    Sequences,
    Stack,
    StepStats,
    Table,
    TableEmptyError,
    Transitions,
)
from replay_proto.steps import Item

from tests.client.steps.comparing import Place, assert_drawn, places
from tests.client.steps.numbered_episodes import COLUMNS, PER_ACTOR, episode_of, play, play_in_process
from tests.client.steps.planned_episodes import GOES_ON, PlannedEpisode, oracle_of
from tests.support import formulas
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


def by_step(table: Table) -> dict[str, NDArray[Any]]:
    """The columns of all drawable steps, in the order in which these were written."""
    batch = table.sample(200, beta=0.0)
    _, index = np.unique(batch.row_keys, return_index=True)
    return {name: values[index] for name, values in batch.items()}


@pytest.mark.parametrize("n_step", [1, 3])
def test_the_last_transition_is_not_lost(new_table: NewTable, n_step: int) -> None:
    columns = {"x": Column("int64"), "reward": Column("float32", sampled=False), "total": Return("reward")}
    table = new_table(columns=columns, steps=Transitions(n_step, 1.0), backend="uniform")
    lengths = sorted({1, 2, n_step - 1, n_step, n_step + 1} - {0})
    acted: list[tuple[int, float]] = []
    with table.writer() as writer:
        for is_terminated in (False, True):
            for length in lengths:
                steps = [len(acted) + step for step in range(length)]
                for step in steps:
                    writer.append(x=step, reward=2.0**step)
                writer.end_episode(x=-1, terminated=is_terminated)
                acted += [(step, sum(2.0**later for later in steps if step <= later < step + n_step)) for step in steps]
    found = by_step(table)
    assert list(zip(found["x"].tolist(), found["total"].tolist(), strict=True)) == acted


def test_a_truncated_episode_does_not_bootstrap_from_the_next_one(new_table: NewTable) -> None:
    columns = {"x": Column("int64"), "next": Next("x"), "discount": Discount()}
    table = new_table(columns=columns, steps=Transitions(3, 0.5), backend="uniform")
    with table.writer() as writer:
        for first in (0, 100):
            for step in range(4):
                writer.append(x=first + step)
            writer.end_episode(x=first + 50, terminated=False)
    found = by_step(table)
    assert found["next"].tolist() == [3, 50, 50, 50, 103, 150, 150, 150]
    assert found["discount"].tolist() == [0.125, 0.125, 0.25, 0.5] * 2


@pytest.mark.parametrize("is_terminated", [False, True])
def test_tails_are_not_dropped(new_table: NewTable, *, is_terminated: bool) -> None:
    columns = {"reward": Column("float32", sampled=False), "n_return": Return("reward"), "discount": Discount()}
    table = new_table(columns=columns, steps=Transitions(3, 0.5), backend="uniform")
    with table.writer() as writer:
        for reward in (1, 2, 4, 8):
            writer.append(reward=reward)
        writer.end_episode(reward=1000, terminated=is_terminated)
    found = by_step(table)
    assert found["n_return"].tolist() == [1 + 2 / 2 + 4 / 4, 2 + 4 / 2 + 8 / 4, 4 + 8 / 2, 8]
    assert found["discount"].tolist() == ([0.125, 0.0, 0.0, 0.0] if is_terminated else [0.125, 0.125, 0.25, 0.5])


def test_a_stack_does_not_reach_into_another_episode(new_table: NewTable) -> None:
    columns = {"x": Column("int64"), "stack": Stack("x", 3, "zero"), "next": Stack("x", 3, ahead=True)}
    table = new_table(columns=columns, steps=Transitions(1), backend="uniform")
    with table.writer() as writer:
        for x in (1, 2, 3):
            writer.append(x=x)
        writer.end_episode(x=4, terminated=False)
        writer.append(x=11)
        writer.append(x=12)
        writer.abandon_episode()
        writer.append(x=21)
        writer.end_episode(x=22, terminated=True)
    found = by_step(table)
    assert found["stack"].tolist() == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [0, 0, 11], [0, 0, 21]]
    assert found["next"].tolist() == [[1, 1, 2], [1, 2, 3], [2, 3, 4], [11, 11, 12], [21, 21, 22]]


@pytest.mark.parametrize("backend", ["sum_tree", "rank", "uniform"])
def test_rows_that_cannot_be_drawn_do_not_distort_probabilities(new_table: NewTable, backend: str) -> None:
    item = Transitions(2)
    table = new_table(columns=COLUMNS, steps=item, backend=backend, capacity=60)
    with table.writer(streams=2, block_rows=1) as writer:
        actors = [play(writer[stream], stream) for stream in range(2)]
        for _ in range(50):
            for actor in actors:
                next(actor)
    steps = table.stats().steps
    assert steps is not None
    assert min(steps.pending, steps.broken, steps.closing) > 0
    at = places(table)
    expected = drawable(item, stored(table, at), at)
    keys = np.array(sorted(key for key, place in at.items() if place in expected))
    priorities = np.random.default_rng(1).lognormal(size=len(keys))
    table.update_priorities(keys, priorities)
    exact = formulas.probabilities(backend, table.describe().parameters, priorities)
    for norm in ("batch", "table"):
        batch = table.sample(2000, beta=0.5, weight_norm=norm)
        index = np.searchsorted(keys, batch.row_keys)
        np.testing.assert_array_equal(keys[index], batch.row_keys)
        np.testing.assert_allclose(batch.probabilities, exact[index], rtol=1e-12)
        # A stratified draw hits each row as often as expected, but for the two segments at its bounds.
        assert (abs(np.bincount(index, minlength=len(keys)) - 2000 * exact) < 2).all()
        reference = float(exact[index].min() if norm == "batch" else exact.min())
        np.testing.assert_allclose(batch.weights, formulas.weights(exact[index], reference, len(keys), 0.5), rtol=1e-5)


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


def test_the_first_steps_of_an_episode_are_learned(new_table: NewTable) -> None:
    columns = {"x": Column("int64"), "mask": Mask()}
    table = new_table(columns=columns, steps=Sequences(4, burn_in=3, period=2), backend="uniform")
    with table.writer() as writer:
        for x in range(7):
            writer.append(x=x)
        writer.end_episode(x=100)
    found = by_step(table)
    learned = [x[mask].tolist() for x, mask in zip(found["x"][:, 3:], found["mask"][:, 3:], strict=True)]
    assert learned == [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6], [6]]


FRAME, REWARD = Column("uint8", 4), Column("float32")


@pytest.mark.parametrize(
    ("columns", "steps", "field"),
    [
        ({"x": FRAME, "stack": Stack("x", 2)}, None, "columns.stack"),
        ({"x": FRAME, "discount": Discount()}, None, "columns.discount"),
        ({"x": Column("uint8", sampled=False)}, None, "columns.x.sampled"),
        ({"x": Column("uint8", at="start")}, None, "columns.x.at"),
        ({"x": FRAME, "stack": Stack("y", 2)}, Transitions(), "columns.stack.of"),
        ({"x": FRAME, "a": Stack("x", 2), "b": Stack("a", 2)}, Transitions(), "columns.b.of"),
        ({"x": FRAME, "stack": Stack("x", 0)}, Transitions(), "columns.stack.count"),
        ({"x": FRAME, "stack": Stack("x", 2, "edge")}, Transitions(), "columns.stack.padding"),  # type: ignore[arg-type]
        ({"x": FRAME, "total": Return("x")}, Transitions(), "columns.total.of"),
        ({"x": FRAME, "mask": Mask()}, Transitions(), "columns.mask"),
        ({"x": REWARD, "total": Return("x")}, Sequences(2), "columns.total"),
        ({"x": FRAME, "next": Next("x")}, Sequences(2), "columns.next.ahead"),
        ({"x": Column("uint8", at="start")}, Transitions(), "columns.x.at"),
        ({"x": FRAME}, "transitions", "steps"),
        ({"x": Column("uint8", sampled=False)}, Transitions(), "columns"),
    ],
)
def test_options_that_exclude_each_other_are_refused_by_name(columns: Any, steps: Any, field: str) -> None:
    with ReplayClient("localhost:1") as client, pytest.raises(InvalidArgumentError) as refused:
        client.create_table("t", columns=columns, capacity=10, steps=steps)
    assert refused.value.metadata["field"] == field


WRONG_NUMBERS: list[tuple[type[Any], dict[str, Any], str]] = [
    (Transitions, {"n_step": 0}, "steps.n_step"),
    (Transitions, {"n_step": (1, 3)}, "steps.n_step"),
    (Transitions, {"n_step": True}, "steps.n_step"),
    (Transitions, {"gamma": 1.5}, "steps.gamma"),
    (Transitions, {"gamma": "x"}, "steps.gamma"),
    (Sequences, {"length": 0}, "steps.length"),
    (Sequences, {"length": 5000}, "steps.length"),
    (Sequences, {"length": 2, "burn_in": -1}, "steps.burn_in"),
    (Sequences, {"length": 2, "period": 3}, "steps.period"),
]


@pytest.mark.parametrize(("item", "numbers", "field"), WRONG_NUMBERS, ids=str)
def test_items_with_wrong_numbers_cannot_be_made(item: type[Any], numbers: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        item(**numbers)
    assert refused.value.metadata["field"] == field


@pytest.mark.parametrize("is_ended_at_once", [True, False])
@pytest.mark.parametrize(
    ("item", "steps"),
    [
        (Sequences(4, period=4, gamma=0.5), 4),
        (Sequences(1, gamma=0.5), 3),
        (Sequences(3, burn_in=2, gamma=0.5), 6),
        (Sequences(3, period=2, gamma=0.5), 5),
    ],
)
def test_no_step_that_leads_to_a_terminal_state_bootstraps(
    new_table: NewTable, item: Sequences, steps: int, is_ended_at_once: bool
) -> None:
    columns = {"x": Column("int64"), "discount": Discount(), "mask": Mask()}
    table = new_table(columns=columns, steps=item, backend="uniform")
    with table.writer() as writer:
        for step in range(steps):
            writer.append(x=step)
        if not is_ended_at_once:  # what can be drawn before the end is known does not depend on it
            writer.flush()
            assert table.stats().steps.drawable == len(range(0, steps - item.length, item.period))  # type: ignore[union-attr]
        writer.end_episode(x=steps, terminated=True)
    batch = table.sample(64, beta=0.0)
    expected = np.where(batch["mask"], np.where(batch["x"] == steps - 1, 0.0, 0.5), 0.0)
    assert batch["discount"].tolist() == expected.tolist()
    assert (batch["mask"] & (batch["x"] == steps - 1)).any()


@pytest.mark.parametrize(
    ("steps", "episode", "most"),
    [(Transitions(5), 200, 99), (Sequences(1), 200, 99), (Sequences(10), 200, 99), (Sequences(10, period=10), 1, 50)],
)
def test_a_min_size_that_is_never_reached_is_refused(new_table: NewTable, steps: Item, episode: int, most: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"at most .*{most}") as refused:
        new_table(columns={"x": FRAME}, steps=steps, capacity=100, min_size=most + 1)
    assert refused.value.metadata["field"] == "min_size"
    table = new_table(columns={"x": FRAME}, steps=steps, capacity=100, min_size=most)
    with table.writer() as writer:
        for step in range(1, 201):
            writer.append(x=np.zeros(4, np.uint8))
            if step % episode == 0:
                writer.end_episode(x=np.zeros(4, np.uint8))
    assert table.sample(1, beta=0.0).drawable == most


@pytest.mark.parametrize(
    ("options", "field"),
    [({"capacity": 3}, "capacity"), ({"epsilon": 0.0}, "epsilon")],
)
def test_steps_exclude_small_tables_and_zero_mass(new_table: NewTable, options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        new_table(columns={"x": FRAME}, steps=Transitions(3), **options)
    assert refused.value.metadata["field"] == field
