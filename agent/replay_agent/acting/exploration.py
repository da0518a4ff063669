"""How much each actor explores."""

from __future__ import annotations


def ape_x_epsilons(epsilon: float, alpha: float, count: int) -> tuple[float, ...]:
    """Return a constant probability of random actions for each of ``count`` actors, 2 or more, largest first.

    This is ``epsilon ** (1 + i / (count - 1) * alpha)`` for actor i from 0 (Horgan et al., 2018, arXiv:1803.00933,
    section 4.1).
    """
    return tuple(float(epsilon ** (1 + i / (count - 1) * alpha)) for i in range(count))
