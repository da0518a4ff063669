"""How much each actor explores."""

from __future__ import annotations


def ape_x_epsilons(epsilon: float, alpha: float, count: int) -> tuple[float, ...]:
    """Return the constant probabilities with which ``count`` actors (2 or more) act at random, largest first.

    Actor i, numbered from 0, has the probability ``epsilon ** (1 + i / (count - 1) * alpha)`` (Horgan et al., 2018,
    arXiv:1803.00933, section 4.1).
    """
    return tuple(float(epsilon ** (1 + i / (count - 1) * alpha)) for i in range(count))
