"""Sequences that are drawn a limited number of times, and new sequences before others, by the client.

The rules are in docs/concepts/backpressure.md and docs/how-to/client.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from replay_client import Batch, Column, LimitedError, Mask, Sequences, Table, TableEmptyError, Transitions

LENGTH = 4
NewTable = Callable[..., Table]


@pytest.fixture
def new_sequences(new_table: Callable[..., Table]) -> NewTable:
    """Creates a table of sequences of four steps."""

    def make(**options: Any) -> Table:
        columns = {"step": Column("int64"), "mask": Mask()}
        return new_table(**{"columns": columns, "steps": Sequences(length=LENGTH), "capacity": 200, **options})

    return make


def write(table: Table, steps: range, *, ends: bool = True) -> None:
    with table.writer() as writer:
        for step in steps:
            writer.append(step=step)
        if ends:
            writer.end_episode(step=-1)
        writer.flush()


def sequences(batch: Batch) -> list[list[int]]:
    return [steps[mask].tolist() for steps, mask in zip(batch["step"], batch["mask"].astype(bool), strict=True)]


@pytest.mark.parametrize("backend", ["uniform", "sum_tree", "rank"])
def test_each_sequence_is_drawn_twice(new_sequences: NewTable, backend: str) -> None:
    table = new_sequences(backend=backend, max_times_sampled=2)
    write(table, range(10))
    drawn: Counter[int] = Counter()
    with table.sampler(4, prefetch=1, timeout_s=60) as sampler:
        for _ in range(4):
            batch = next(sampler)
            drawn.update(each[0] for each in sequences(batch))
            sampler.update_priorities(batch, [0.0] * 4)
    assert sum(drawn.values()) == 16
    assert max(drawn.values()) <= 2
    with pytest.raises(TableEmptyError if sum(drawn.values()) == 20 else LimitedError):
        table.sample(LENGTH + 1)
    stats = table.stats()
    assert stats.steps is not None
    assert stats.steps.drawable == 10 - sum(times == 2 for times in drawn.values())


def test_a_sequence_whose_first_steps_were_evicted_has_no_draws_left(new_sequences: NewTable) -> None:
    table = new_sequences(backend="uniform", max_times_sampled=1, capacity=12, steps=Sequences(length=2, burn_in=2))
    write(table, range(11))
    write(table, range(100, 104))
    drawn = [int(table.sample(1).row_keys[0]) for _ in range(8)]
    with pytest.raises(TableEmptyError):
        table.sample(1)
    # Of the 12 newest rows, 5 to 10 are steps of the first episode, and 12 to 15 those of the second one. Some rows
    # before the anchors 5 and 6 are gone.
    assert sorted(drawn) == [7, 8, 9, 10, 12, 13, 14, 15]


def test_new_sequences_that_do_not_overlap_come_first(new_sequences: NewTable) -> None:
    table = new_sequences(backend="uniform")
    write(table, range(20))
    table.sample(1, draw_mode="newest_first")
    write(table, range(100, 118))
    first = sequences(table.sample(8, draw_mode="newest_first"))
    assert first[:5] == [[116, 117], *([start, start + 1, start + 2, start + 3] for start in (112, 108, 104, 100))]


def test_new_transitions_come_first(new_table: Callable[..., Table]) -> None:
    table = new_table(columns={"step": Column("int64")}, steps=Transitions(n_step=2), capacity=100)
    write(table, range(5))
    with table.sampler(3, draw_mode="newest_first", prefetch=1) as sampler:
        next(sampler)
        write(table, range(50, 53))
        found = [next(sampler)["step"].tolist() for _ in range(3)]
    assert [52, 51, 50] in found
