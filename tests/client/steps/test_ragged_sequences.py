"""Sequences without padding: each has the positions that hold a row, and no others.

The oracle is the docstring of `Sequences`: from ``burn_in`` steps before the anchor to ``length - 1`` after it, within
the episode, whose end has the final observation.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from replay_client import Batch, Column, Discount, InvalidArgumentError, Mask, ReplayClient, Sequences, Stack, Table
from replay_client.torch import to_torch

LENGTHS = [1, 4, 9, 2, 6]
"""Steps of each episode."""
GAMMA = 0.9


def write(table: Table) -> dict[int, tuple[int, int]]:
    """Write the episodes, each with a final observation; return the episode and step of each key."""
    places: dict[int, tuple[int, int]] = {}
    with table.writer() as writer:
        for episode, length in enumerate(LENGTHS):
            for step in range(length):
                writer.append(x=100 * episode + step, state=[step, -step])
                places[len(places)] = (episode, step)
            writer.end_episode(x=100 * episode + length, terminated=episode % 2 == 0)
            places[len(places)] = (episode, length)
        writer.flush()
    return places


def new_ragged(new_table: Callable[..., Table], item: Sequences, **options: Any) -> Table:
    columns = {
        "x": Column("int64"),
        "state": Column("float32", 2, at="start"),
        "stack": Stack("x", 2),
        "zeros": Stack("x", 2, padding="zero"),
        "discount": Discount(),
        "mask": Mask(),
    }
    return new_table(columns=columns, steps=item, backend="uniform", **options)


def check(batch: Batch, item: Sequences, places: dict[int, tuple[int, int]]) -> None:
    """Compare a batch with the episodes."""
    assert batch.offsets[0] == 0
    assert batch.offsets[-1] == len(batch["x"]) == len(batch.position_keys)
    for row, key in enumerate(batch.row_keys.tolist()):
        episode, anchor = places[key]
        steps = LENGTHS[episode]
        first, last = max(0, anchor - item.burn_in), min(steps, anchor + item.length - 1)
        positions = range(first, last + 1)
        part = slice(*batch.offsets[row : row + 2])
        assert batch["x"][part].tolist() == [100 * episode + step for step in positions]
        assert batch["stack"][part].tolist() == [
            [100 * episode + max(step - 1, 0), 100 * episode + step] for step in positions
        ]
        assert batch["zeros"][part].tolist() == [
            [100 * episode + step - 1 if step else 0, 100 * episode + step] for step in positions
        ]
        assert batch["mask"][part].tolist() == [step < steps for step in positions]
        discounts = [0.0 if step == steps or (step == steps - 1 and episode % 2 == 0) else GAMMA for step in positions]
        np.testing.assert_allclose(batch["discount"][part], discounts, rtol=1e-6)
        assert [places[each] for each in batch.position_keys[part].tolist()] == [(episode, step) for step in positions]
        assert batch["state"][row].tolist() == [first, -first]


@pytest.mark.parametrize(
    "item",
    [
        Sequences(12, period=12, gamma=GAMMA, padded=False),
        Sequences(3, burn_in=2, gamma=GAMMA, padded=False),
        Sequences(1, gamma=GAMMA, padded=False),
        Sequences(4, burn_in=1, period=3, gamma=GAMMA, padded=False),
    ],
)
def test_each_sequence_has_its_own_length(new_table: Callable[..., Table], item: Sequences) -> None:
    table = new_ragged(new_table, item)
    places = write(table)
    assert table.describe().steps == table.steps
    check(table.sample(40), item, places)
    with table.sampler(16, prefetch=2) as sampler:
        for _ in range(3):
            batch = next(sampler)
            check(batch, item, places)
            for part in batch.split(4):
                check(part, item, places)
    check(pickle.loads(pickle.dumps(batch)), item, places)


def test_tensors_have_no_padding_either(new_table: Callable[..., Table]) -> None:
    table = new_ragged(new_table, Sequences(12, period=12, padded=False))
    write(table)
    tensors = to_torch(table.sample(8))
    nested = torch.nested.nested_tensor_from_jagged(tensors["x"], torch.from_numpy(tensors.offsets))
    assert [len(each) for each in nested.unbind()] == np.diff(tensors.offsets).tolist()
    tensors["x"] = tensors["x"].float()
    with pytest.raises(InvalidArgumentError, match="expected a tensor with 8 rows"):
        tensors["x"] = torch.zeros(len(tensors["x"]) + 1)


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
def test_priorities_of_all_positions_are_combined(new_table: Callable[..., Table], kind: Callable[..., Any]) -> None:
    """The closing row is no step, so it does not count."""
    table = new_ragged(new_table, Sequences(12, period=12, padded=False, eta=0.9))
    places = write(table)
    batch = table.sample(5, draw_mode="without_replacement")
    errors = kind([float(places[key][1]) for key in batch.position_keys.tolist()])
    table.update_priorities(batch, errors)
    last_steps = np.array([LENGTHS[places[key][0]] - 1 for key in batch.row_keys.tolist()])
    expected = 0.9 * last_steps + 0.1 * last_steps / 2
    np.testing.assert_allclose(table.read(batch.row_keys).priorities, expected)
    with pytest.raises(InvalidArgumentError, match="priorities"):
        table.update_priorities(batch, errors[1:])
    table.update_priorities(batch, np.ones(5))
    assert table.read(batch.row_keys).priorities.tolist() == [1.0] * 5


def test_what_needs_padding_is_refused(new_table: Callable[..., Table], client: ReplayClient) -> None:
    table = new_ragged(new_table, Sequences(3, padded=False))
    padded = new_ragged(new_table, Sequences(3))
    write(table)
    write(padded)
    with pytest.raises(InvalidArgumentError, match=r"steps\.padded: expected True in mixed batches"):
        client.mixed_sampler({table.name: 2, padded.name: 2})
    with pytest.raises(InvalidArgumentError, match="offsets: expected a batch of Sequences"):
        padded.sample(2).offsets  # noqa: B018
    with pytest.raises(InvalidArgumentError, match=r"steps\.padded: expected True or False, got 2"):
        Sequences(3, padded=2)  # type: ignore[arg-type]
