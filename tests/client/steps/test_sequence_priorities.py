"""Priorities of sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from replay_client import InvalidArgumentError, sequence_priorities

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
