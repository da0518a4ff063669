"""Valid and invalid options of a draw."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from replay_client import InvalidArgumentError, ReplayClient, Table
from replay_client.draws import draw_of

from tests.client.numbered import rows


@pytest.mark.parametrize("beta", [1, 0.5, True, np.float32(0.5), np.array(0.5), torch.tensor(0.5)])
def test_beta_is_any_number(beta: Any) -> None:
    assert draw_of(4, beta).beta == float(beta)


@pytest.mark.parametrize("batch_size", [4, np.int64(4), np.array(4), torch.tensor(4)])
def test_a_batch_size_is_any_whole_number(batch_size: Any) -> None:
    assert draw_of(batch_size, 0.4).batch_size == 4


BAD_BETAS: list[Any] = [-1, "0.4", float("nan"), float("inf"), 1j, 10**400, np.array([0.4]), torch.ones(2)]
BAD_COUNTS: list[Any] = [0, -1, True, 2.0, "4", None, 2**63, torch.tensor(4.0), [4]]

BAD_NAMES: list[Any] = ["random", None, []]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("beta", value) for value in BAD_BETAS),
        *(("batch_size", value) for value in BAD_COUNTS),
        *(("weight_norm", value) for value in BAD_NAMES),
        *(("draw_mode", value) for value in BAD_NAMES),
    ],
)
def test_anything_else_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        draw_of(**{"batch_size": 4, "beta": 0.4, field: value})
    assert refusal.value.metadata["field"] == field
    assert refusal.value.metadata["got"] == repr(value)


@pytest.mark.parametrize("prefetch", BAD_COUNTS)
def test_so_is_a_prefetch(table: Table, prefetch: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="prefetch"):
        table.sampler(4, beta=0.4, prefetch=prefetch)
    with table.sampler(4, beta=0.4) as sampler, pytest.raises(InvalidArgumentError, match="prefetch"):
        sampler.prefetch = prefetch


def test_rows_of_a_batch_without_replacement_are_different(table: Table) -> None:
    table.insert(rows(range(40)), priorities=np.arange(40) ** 4)
    assert len(np.unique(table.sample(40).row_keys)) < 40
    assert np.unique(table.sample(40, draw_mode="without_replacement").row_keys).tolist() == list(range(40))
    with table.sampler(30, draw_mode="without_replacement", prefetch=2) as sampler:
        for _ in range(5):
            assert len(np.unique(next(sampler).row_keys)) == 30
    with table.sampler(2, draw_mode="without_replacement", prefetch=64) as sampler:  # several batches in each message
        for _ in range(100):
            assert len(np.unique(next(sampler).row_keys)) == 2


def test_a_sampler_without_replacement_waits_for_as_many_rows(table: Table) -> None:
    with table.sampler(30, draw_mode="without_replacement", prefetch=1) as sampler:
        timer = threading.Timer(0.3, lambda: table.insert(rows(range(20, 40))))
        table.insert(rows(range(20)))
        timer.start()
        assert len(np.unique(next(sampler).row_keys)) == 30
        timer.join()


@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_batch_is_split_into_equal_parts(table: Table, device: str | None) -> None:
    table.insert(rows(range(100)), priorities=np.arange(100.0))
    with table.sampler(24, prefetch=1, row_info=True, device=device) as sampler:
        batch = next(sampler)
        parts = batch.split(3)
        assert [part.batch_size for part in parts] == [8, 8, 8]
        for name in batch:
            np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), batch[name])
        for name in ("row_keys", "weights", "probabilities"):
            np.testing.assert_array_equal(np.concatenate([getattr(part, name) for part in parts]), getattr(batch, name))
        assert parts[1].row_info is not None
        assert batch.row_info is not None
        np.testing.assert_array_equal(parts[1].row_info.ages_s, batch.row_info.ages_s[8:16])
        for part in parts:
            sampler.update_priorities(part, np.full(8, 7.0))
    assert (table.read(batch.row_keys).priorities == 7.0).all()
    for count in (0, 5, 25, -1, 2.0, "2"):
        with pytest.raises(InvalidArgumentError, match="count: expected a divisor of 24 rows"):
            batch.split(count)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="split: expected a batch of one table"):
        client_batch(table).split(2)


def client_batch(table: Table) -> Any:
    """A batch of two tables."""
    client = ReplayClient(table.address)
    with client, client.mixed_sampler({table.name: 2}) as sampler:
        return next(sampler)
