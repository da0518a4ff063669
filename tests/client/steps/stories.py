"""Tables of steps with random columns and items, and what users do to them, told to the oracle as well."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from replay_client import (
    Column,
    Derived,
    Discount,
    Mask,
    ReplayClient,
    Return,
    Sequences,
    Stack,
    Table,
    Transitions,
    Writer,
)

from tests.client.steps.oracle import Columns, StepsOracle

DTYPES: Final = [*"?bhiqBHIQefd"]
FLOATS: Final = [*"efd"]
SHAPES: Final = [(), (1,), (3,), (2, 2)]
SPECIAL: Final = [np.nan, np.inf, -np.inf, -0.0, 0.0]
NUMBER: Final = "number"
"""A column by which rows are told apart."""

Generator = np.random.Generator


def random_columns(rng: Generator) -> tuple[Columns, Transitions | Sequences]:
    """The columns of a table, and its item."""
    gamma = float(rng.choice([0.0, 0.5, 0.9, 0.99, 1.0]))
    stored: dict[str, Column] = {NUMBER: Column("int64")}
    is_transitions = rng.random() < 0.5
    for name in "abc"[: rng.integers(1, 4)]:
        shape = SHAPES[rng.integers(4)]
        is_at_start = not is_transitions and name == "c" and rng.random() < 0.7
        stored[name] = Column(
            np.dtype(str(rng.choice(DTYPES))),
            shape,
            sampled=is_at_start or bool(rng.random() < 0.6),
            at="start" if is_at_start else "step",
        )
    of = [name for name, column in stored.items() if column.at == "step"]
    columns: dict[str, Column | Derived] = dict(stored)
    for number in range(rng.integers(0, 4)):
        columns[f"stack{number}"] = Stack(
            str(rng.choice(of)),
            int(rng.integers(1, 6)),
            "repeat" if rng.random() < 0.5 else "zero",
            ahead=is_transitions and bool(rng.random() < 0.5),
        )
    if rng.random() < 0.8:
        columns["discount"] = Discount()
    if not is_transitions:
        if rng.random() < 0.8:
            columns["mask"] = Mask()
        length = int(rng.integers(1, 8))
        return columns, Sequences(length, int(rng.integers(0, 5)), int(rng.integers(1, length + 1)), gamma)
    for number in range(rng.integers(0, 3)):
        columns[f"reward{number}"] = Column(np.dtype(str(rng.choice(FLOATS))), [(), (2,)][rng.integers(2)])
        columns[f"return{number}"] = Return(f"reward{number}")
    return columns, Transitions(int(rng.integers(1, 7)), gamma)


def random_value(name: str, column: Column, rng: Generator) -> NDArray[Any]:
    """A value of any dtype; rewards are small, so that their sums are exact."""
    if name.startswith("reward"):
        return rng.integers(-8, 9, column.shape).astype(column.dtype)
    if column.dtype.kind == "f":
        value = np.asarray(rng.normal(size=column.shape) * 100).astype(column.dtype)
        return np.where(rng.random(column.shape) < 0.1, rng.choice(SPECIAL), value).astype(column.dtype)
    if column.dtype.kind == "b":
        return np.asarray(rng.random(column.shape) < 0.5)
    return np.frombuffer(rng.bytes(column.row_bytes), column.dtype).reshape(column.shape)


class Story:
    """A table, and the streams that are written to it."""

    def __init__(self, client: ReplayClient, name: str, rng: Generator, *, is_sharded: bool) -> None:
        """Create the table."""
        self.rng, self.is_sharded = rng, is_sharded
        self.columns, self.item = random_columns(rng)
        self.oracle = StepsOracle(self.columns, self.item)
        self.streams = int(rng.integers(1, 9))
        self.backend = str(rng.choice(["uniform", "sum_tree"] if is_sharded else ["uniform", "sum_tree", "rank"]))
        window = self.oracle.most_rows
        self.capacity = int(
            rng.choice(np.array([window + rng.integers(0, 20), 3 * window + rng.integers(0, 60), 1000]))
        )
        self.capacity *= 3 if is_sharded else 1
        self.has_priorities = self.backend != "uniform" and (is_sharded or bool(rng.random() < 0.7))
        self.late = int(rng.integers(0, 1 + min(3, self.oracle.rows_after)))
        """How many steps later the actors know the priority of a step."""
        self.table: Table = client.create_table(
            name, columns=self.columns, capacity=self.capacity, backend=self.backend, steps=self.item
        )
        self.written = 0
        self.counted: Counter[str] = Counter(streams=0)
        self.writer: Writer | None = None
        self._names = itertools.count()
        self._first_name = 0

    def begin(self) -> None:
        """Open a writer."""
        self._first_name = next(self._names) * 100
        self.writer = self.table.writer(streams=self.streams, block_rows=int(self.rng.integers(1, 30)))
        self.counted["streams"] += self.streams

    def end(self) -> None:
        """Close the writer, whose episodes stay unfinished."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None

    def flush(self) -> None:
        """Wait until all rows are stored; then the oldest are evicted."""
        if self.writer is not None:
            self.writer.flush(timeout_s=30)

    def play(self, acts: int) -> None:
        """Do what users do, at random."""
        if self.writer is None:
            self.begin()
        end_rate = self.rng.choice([0.02, 0.1, 0.3])
        for _ in range(acts):
            self._act(end_rate)
        self.flush()
        if self.rng.random() < 0.15:
            self.end()
            self.begin()

    def _act(self, end_rate: float) -> None:
        assert self.writer is not None
        stream, chance = int(self.rng.integers(self.streams)), self.rng.random()
        if chance < 0.004:
            self.flush()
            self.table.reset()
            self.oracle.reset()
            self.counted["resets"] += 1
        elif chance < 0.02:
            self.writer[stream].abandon_episode()
            self.oracle.abandon_episode(self._name(stream))
            self.counted["abandoned"] += 1
        elif chance < end_rate:
            self._end(stream)
        elif chance < 0.9:
            self._append(stream)
        elif chance < 0.97:
            self._append_all()
        else:
            self._end_all()

    def _name(self, stream: int) -> int:
        return self._first_name + stream

    def _row(self, *, closing: bool = False) -> dict[str, NDArray[Any]]:
        row = {}
        for name, column in self.oracle.stored.items():
            if name == NUMBER:
                row[name] = np.asarray(self.written)
            elif not closing or name in self.oracle.needed_at_the_end or self.rng.random() < 0.3:
                row[name] = random_value(name, column, self.rng)
        self.written += 1
        return row

    def _append(self, stream: int) -> None:
        assert self.writer is not None
        row, priority = self._row(), None
        if self.has_priorities and self.oracle.steps_of(self._name(stream)) >= self.late:
            priority = float(self.rng.choice([0.5, 1.0, 3.0]) * self.rng.random() + 0.01)
        self.writer[stream].append(row, priority=priority, steps_ago=self.late)
        self.oracle.append(self._name(stream), row, priority, self.late)

    def _end(self, stream: int) -> None:
        assert self.writer is not None
        name = self._name(stream)
        terminated = bool(self.rng.random() < 0.6)
        if not self.oracle.has_steps(name):
            self.writer[stream].end_episode(self._row(closing=True), terminated=terminated)
            self.oracle.abandon_episode(name)
            return
        row, priorities = self._row(closing=True), None
        if self.has_priorities:
            most = min(self.oracle.rows_after, self.oracle.steps_of(name))
            priorities = self.rng.random(int(self.rng.integers(min(self.late, most), most + 1))) + 0.01
        self.writer[stream].end_episode(row, terminated=terminated, priorities=priorities)
        self.oracle.end_episode(name, row, terminated=terminated, priorities=priorities)
        self.counted["terminated" if terminated else "truncated"] += 1

    def _append_all(self) -> None:
        assert self.writer is not None
        where = self.rng.random(self.streams) < 0.7
        if self.has_priorities:
            where &= [self.oracle.steps_of(self._name(stream)) >= self.late for stream in range(self.streams)]
        rows, priorities = [self._row() for _ in range(self.streams)], self.rng.random(self.streams) + 0.01
        self.writer.append_all(
            {name: np.stack([row[name] for row in rows]) for name in rows[0]},
            where=where,
            priorities=priorities if self.has_priorities else None,
            steps_ago=self.late,
        )
        for stream in np.flatnonzero(where).tolist():
            priority = float(priorities[stream]) if self.has_priorities else None
            self.oracle.append(self._name(stream), rows[stream], priority, self.late)

    def _end_all(self) -> None:
        assert self.writer is not None
        if self.has_priorities:
            return
        done, terminated = self.rng.random((2, self.streams)) < 0.5
        rows = [self._row() for _ in range(self.streams)]
        values = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        self.writer.end_episodes(done, values, terminated=terminated)
        for stream in np.flatnonzero(done).tolist():
            if self.oracle.has_steps(self._name(stream)):
                self.oracle.end_episode(self._name(stream), rows[stream], terminated=bool(terminated[stream]))
                self.counted["terminated" if terminated[stream] else "truncated"] += 1
            else:
                self.oracle.abandon_episode(self._name(stream))
