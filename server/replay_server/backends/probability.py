"""The smallest probability that is reported."""

import numpy as np

LEAST_PROBABILITY = float(np.finfo(np.float64).tiny)
"""Reported instead of a smaller one, whose inverse, an importance-sampling weight, would overflow."""
