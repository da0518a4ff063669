"""Valid and invalid options of a draw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from replay_client import InvalidArgumentError, Table
from replay_client.draws import draw_of


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
