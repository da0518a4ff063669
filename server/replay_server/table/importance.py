"""Importance-sampling weights (Schaul et al. 2016, section 3.4)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from replay_server.kernels.compile import Floats, kernel


@kernel
def importance_weights(probabilities: Floats, batch_size: int, least: float, beta: float) -> NDArray[np.float32]:
    """Return importance-sampling weights, float32[n], of batches with these probabilities.

    A row with the probability ``least`` has the weight 1. If ``least`` is 0, the smallest one of each batch is used.

    ``w = (N * P)**-beta / (N * P_least)**-beta = (P_least / P)**beta``.
    """
    weights = np.empty(len(probabilities), np.float32)
    for start in range(0, len(probabilities), batch_size):
        batch = probabilities[start : start + batch_size]
        reference = least
        if reference == 0.0:
            reference = batch[0]
            for probability in batch:
                reference = min(reference, probability)
        for i in range(len(batch)):
            # Powers are slow, and in uniform draws, all probabilities are equal.
            weights[start + i] = 1.0 if batch[i] == reference else (reference / batch[i]) ** beta
    return weights
