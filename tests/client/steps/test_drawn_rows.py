"""Rows drawn while eight writers write, compared byte by byte with a plan that keeps every step.

Every cell of the grid draws about 12,400 rows, and all 81 cells a million. `make test-deep` draws 20 times as many.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray
from replay_client import Batch, Column, Discount, ReplayClient, Return, Sampler, Stack, Table, Transitions, Writer
from replay_proto.steps import Padding

from tests.support import formulas
from tests.support.examples import examples
from tests.support.server_process import ServerProcess

WRITERS: Final = 8
CAPACITY: Final = 200
WRAPS: Final = 20
GAMMA: Final = 0.9
BATCH: Final = 1240
LONGEST_EPISODE: Final = 50
MOST_BLOCK_ROWS: Final = 148
PER_WRITER: Final = 10**6
"""Row n of writer w has the number ``w * PER_WRITER + n``."""
PHASES: Final = 5
"""In each, rows are drawn while the writers write, and then while they pause."""
GRID: Final = [(n, *stack) for n, stack in product([1, 3, 5], [(1, "zero"), (4, "zero"), (4, "repeat")])]
CASES: Final = [
    pytest.param(*shape, backend, marks=[] if (row + column) % 3 == 0 else pytest.mark.deep)
    for row, shape in enumerate(GRID)
    for column, backend in enumerate(["sum_tree", "rank", "uniform"])
]
"""Each shape with one backend; deep runs combine all of them."""

Numbers = NDArray[np.int64]


class Plan:
    """All steps that the writers write, by number."""

    def __init__(self, rows: int, rng: np.random.Generator) -> None:
        """Plan ``rows`` rows for each writer."""
        shape = (WRITERS, rows)
        self.rows = rows
        self.first = np.zeros(shape, np.int64)
        """Index of the episode's first row, by writer and row."""
        self.last = np.zeros(shape, np.int64)
        """Index of the row that closes the episode."""
        self.terminated = np.zeros(shape, bool)
        for writer in range(WRITERS):
            first = 0
            while first < rows:
                end = min(first + int(rng.integers(2, LONGEST_EPISODE + 2)), rows)
                self.first[writer, first:end], self.last[writer, first:end] = first, end - 1
                self.terminated[writer, first:end] = rng.random() < 0.5
                first = end

    def write(self, writer: Writer, number: int, rows: range) -> None:
        """Append some rows of a writer, and wait for their acknowledgement."""
        for row in rows:
            values = stored(np.array([number * PER_WRITER + row]))
            one = {name: column[0] for name, column in values.items()}
            if row == self.last[number, row]:
                writer.end_episode(one, terminated=bool(self.terminated[number, row]))
            else:
                writer.append(one)
        writer.flush(timeout_s=60)

    def expected(self, numbers: Numbers, n_step: int, stack: int, padding: Padding) -> dict[str, NDArray[Any]]:
        """The columns of a batch with these anchors."""
        writers, rows = np.divmod(numbers, PER_WRITER)
        last = self.last[writers, rows]
        firsts: Numbers = numbers - rows + self.first[writers, rows]
        steps: Numbers = np.minimum(n_step, last - rows)
        total = np.zeros(len(rows))
        for step in reversed(range(n_step)):
            reward = stored(numbers + step)["reward"].astype(np.float64)
            total = np.where(step < steps, reward + GAMMA * total, total)
        is_over = self.terminated[writers, rows] & (rows + steps == last)
        return {
            "number": numbers,
            "obs": stacked(numbers, firsts, stack, padding),
            "next_obs": stacked(numbers + steps, firsts, stack, padding),
            "n_return": total.astype(np.float32),
            "discount": np.where(is_over, 0.0, GAMMA ** steps.astype(np.float64)).astype(np.float32),
        }

    def are_steps(self, numbers: Numbers) -> NDArray[np.bool_]:
        """bool[n]: which rows do not close their episode."""
        writers, rows = np.divmod(numbers, PER_WRITER)
        steps: NDArray[np.bool_] = rows < self.last[writers, rows]
        return steps

    def can_be_drawn(self, live: Numbers, n_step: int, stack: int) -> NDArray[np.bool_]:
        """bool[n]: which of the live rows have a complete window. live: int64[n]."""
        writers, rows = np.divmod(live, PER_WRITER)
        newest = np.minimum(rows + n_step, self.last[writers, rows])
        oldest = np.maximum(rows - (stack - 1), self.first[writers, rows])
        ends = np.isin(live - rows + newest, live) & np.isin(live - rows + oldest, live)
        can: NDArray[np.bool_] = ends & self.are_steps(live)
        return can


def stored(numbers: Numbers) -> dict[str, NDArray[Any]]:
    """The stored columns of rows with these numbers."""
    mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    frames = mixed[:, None].view(np.uint8).reshape(-1, 2, 4)
    return {"frame": frames, "number": numbers, "reward": (mixed >> np.uint64(50)).astype(np.float32) / 64}


def stacked(numbers: Numbers, firsts: Numbers, count: int, padding: Padding) -> NDArray[np.uint8]:
    """uint8[n, count, 2, 4]: the frames up to each number, none of them before its episode's first."""
    wanted = numbers[:, None] + np.arange(1 - count, 1)
    frames = stored(np.maximum(wanted, firsts[:, None]).ravel())["frame"].reshape(*wanted.shape, 2, 4)
    if padding == "zero":
        frames = np.where((wanted < firsts[:, None])[:, :, None, None], np.uint8(0), frames)
    return frames if count > 1 else frames[:, 0]


@pytest.fixture(scope="module", params=["gRPC", "local socket", "mapped files"])
def drawing(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[tuple[str, ReplayClient]]:
    """A way for drawn rows, and a client that uses it."""
    with ReplayClient(server.address, same_host=request.param != "gRPC") as client:
        yield request.param, client


@pytest.mark.parametrize(("n_step", "stack", "padding", "backend"), CASES)
def test_every_drawn_byte_is_as_planned(
    drawing: tuple[str, ReplayClient], backend: str, n_step: int, stack: int, padding: Padding
) -> None:
    way, client = drawing
    rng = np.random.default_rng([n_step, stack, padding == "zero"])
    columns: dict[str, Any] = {
        "frame": Column("uint8", (2, 4), sampled=False),
        "number": Column("int64"),
        "reward": Column("float32", sampled=False),
        "obs": Stack("frame", stack, padding),
        "next_obs": Stack("frame", stack, padding, ahead=True),
        "n_return": Return("reward"),
        "discount": Discount(),
    }
    item = Transitions(n_step, GAMMA)
    name = f"drawn-{backend}-{n_step}-{stack}-{padding}-{way.replace(' ', '-')}"
    table = client.create_table(name, columns=columns, capacity=CAPACITY, backend=backend, steps=item)
    if way == "local socket":
        table._data_path.renew()
        table._data_path.near.mapped = None  # replies then have the rows
    plan = Plan(-(-WRAPS * table.slots // WRITERS), rng)

    def check(sampler: Sampler) -> Batch:
        batch = next(sampler)
        assert plan.are_steps(batch["number"]).all(), "a row that closes an episode was drawn"
        assert (batch.row_keys >= batch.inserted - batch.table_size).all(), "an evicted row was drawn"
        expected = plan.expected(batch["number"], n_step, stack, padding)
        for column, values in expected.items():
            np.testing.assert_array_equal(batch[column], values, err_msg=column, strict=True)
        sampler.update_priorities(batch, rng.exponential(size=len(batch.row_keys)))
        return batch

    parts = np.linspace(0, plan.rows, PHASES + 1).astype(int)
    blocks = rng.integers(1, MOST_BLOCK_ROWS + 1, WRITERS).tolist()
    with ThreadPoolExecutor(WRITERS) as threads, table.sampler(BATCH, beta=0.4, prefetch=1, timeout_s=60) as sampler:
        writers = [table.writer(block_rows=rows) for rows in blocks]
        for begin, end in zip(parts[:-1].tolist(), parts[1:].tolist(), strict=True):
            writing = [threads.submit(plan.write, each, i, range(begin, end)) for i, each in enumerate(writers)]
            for _ in range(examples(1)):
                check(sampler)
            for each in writing:
                each.result()
            sampler.flush(timeout_s=60)
            for _ in range(examples(1)):
                keys, shares = probabilities(table, plan, n_step, stack)
                batch = check(sampler)
                sampler.flush(timeout_s=60)
                assert np.isin(batch.row_keys, keys).all(), "a row without a complete window was drawn"
                np.testing.assert_allclose(batch.probabilities, shares[np.searchsorted(keys, batch.row_keys)], 1e-12)
                assert batch.drawable == len(keys)
                check_sum(table, keys, rng)
        for writer in writers:
            writer.close()
    client.drop_table(table.name)


def probabilities(table: Table, plan: Plan, n_step: int, stack: int) -> tuple[Numbers, NDArray[np.float64]]:
    """The keys of the rows that can be drawn, in order, and the probability of each."""
    described = table.describe()
    rows = table.read(np.arange(described.inserted - described.size, described.inserted))
    can = plan.can_be_drawn(rows["number"], n_step, stack)
    assert (can == ~np.isnan(rows.priorities)).all(), "other rows can be drawn than those with a complete window"
    return rows.row_keys[can], formulas.probabilities(table.backend, dict(described.parameters), rows.priorities[can])


def check_sum(table: Table, keys: Numbers, rng: np.random.Generator) -> None:
    """Check that the probabilities of all rows that can be drawn, as a draw reports them, have the sum 1."""
    table.update_priorities(keys, rng.uniform(0.5, 1.0, len(keys)))  # so even that one batch has each of them
    batch = table.sample(BATCH, beta=0.4)
    seen, index = np.unique(batch.row_keys, return_index=True)
    np.testing.assert_array_equal(seen, keys)
    assert abs(batch.probabilities[index].sum() - 1.0) < 1e-12
