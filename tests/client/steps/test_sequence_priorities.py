"""Priorities of sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from replay_client import Column, InvalidArgumentError, Mask, Sequences, Table, sequence_priorities

from tests.client.numbered import rows

TD = np.array([[1.0, -3.0, 2.0], [-4.0, 8.0, np.nan], [np.nan, np.nan, np.nan]])
MASK = np.array([[True, True, True], [True, False, False], [False, False, False]])


def as_torch(array: np.ndarray[Any, Any]) -> torch.Tensor:
    return torch.from_numpy(array)


@pytest.mark.parametrize("convert", [np.asarray, as_torch])
@pytest.mark.parametrize("eta", [0.0, 0.5, 0.9, 1.0])
def test_they_mix_the_largest_and_the_mean_of_the_masked_errors(convert: Any, eta: float) -> None:
    found = sequence_priorities(convert(TD), convert(MASK), eta)
    assert type(found) is type(convert(TD))
    np.testing.assert_allclose(np.asarray(found), [eta * 3.0 + (1 - eta) * 2.0, 4.0, 0.0])


def test_dtype_and_gradients_do_not_matter() -> None:
    td = as_torch(TD[:2].astype(np.float32)).requires_grad_()
    found = sequence_priorities(td, as_torch(MASK[:2]))
    assert found.dtype is torch.float32
    assert not found.requires_grad
    assert sequence_priorities(TD[:2].astype(np.float32), MASK[:2]).dtype == np.float32


@pytest.mark.parametrize(
    ("td", "mask", "eta", "field"),
    [
        (TD, MASK[:2], 0.9, "mask"),
        (TD[0], MASK[0], 0.9, "mask"),
        (TD, MASK, 1.1, "eta"),
        (TD, MASK, float("nan"), "eta"),
    ],
)
def test_what_does_not_fit_is_refused(td: Any, mask: Any, eta: float, field: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        sequence_priorities(td, mask, eta)
    assert refused.value.metadata["field"] == field


@pytest.mark.parametrize("convert", [np.asarray, as_torch])
@pytest.mark.parametrize("on_stream", [False, True])
@pytest.mark.parametrize("positions", [2, 3, 5])
def test_errors_of_steps_are_combined_for_each_sequence(
    new_table: Callable[..., Table], convert: Any, on_stream: bool, positions: int
) -> None:
    """Of the first positions from the anchor on, or of all; the closing row and what comes after it do not count."""
    item = Sequences(length=3, burn_in=2, eta=0.75)
    table = new_table(columns={"step": Column("int64"), "mask": Mask()}, steps=item)
    with table.writer() as writer:
        for length in (1, 2, 3, 7):
            for step in range(length):
                writer.append(step=step)
            writer.end_episode(step=-1)
    with table.sampler(32) as sampler:
        batch = next(sampler)
        errors = np.random.default_rng(0).random((32, 5)) + 1
        taken = errors if positions == 5 else errors[:, 2 : 2 + positions]
        (sampler if on_stream else table).update_priorities(batch, convert(taken))
        sampler.flush()
    due = {}
    for key, row, mask in zip(batch.row_keys.tolist(), errors[:, 2:], batch["mask"][:, 2:], strict=True):
        known = row[:positions][mask[:positions]]
        due[key] = 0.75 * known.max() + 0.25 * known.mean()  # the last of a repeated key
    rows = table.read(list(due))
    np.testing.assert_allclose(rows.priorities, list(due.values()))


def test_errors_of_steps_need_a_batch_of_sequences(new_table: Callable[..., Table]) -> None:
    table = new_table(columns={"step": Column("int64")}, steps=Sequences(length=3))
    with table.writer() as writer:
        for step in range(10):
            writer.append(step=step)
    batch = table.sample(4)
    for priorities in (np.ones((4, 4)), np.ones((3, 3)), np.ones((4, 0))):
        with pytest.raises(InvalidArgumentError, match="one for each of up to 3 positions from the anchor on"):
            table.update_priorities(batch, priorities)
    with pytest.raises(InvalidArgumentError, match="priorities of steps need a batch of sequences"):
        table.update_priorities(batch.row_keys, np.ones((4, 3)))
    plain = new_table()
    plain.insert(rows(range(4)))
    with pytest.raises(InvalidArgumentError, match="priorities of steps need a batch of sequences"):
        plain.update_priorities(plain.sample(4), np.ones((4, 3)))
