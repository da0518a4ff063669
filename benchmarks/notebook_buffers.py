"""Buffers like those in notebooks: plain Python, easy to check against the paper, and slow.

They serve as a baseline for speed, and as oracles for draws. Each stores transitions as tuples and draws by priority
with replacement (Schaul et al. 2016, arXiv:1511.05952, section 3.3).
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

Transition = tuple[Any, ...]


@dataclass(frozen=True)
class NotebookBatch:
    """Drawn transitions."""

    places: list[int]
    """Position of each transition, in order of insertion."""
    probabilities: NDArray[np.float64]
    """Probability of each draw, float64[batch]."""
    columns: list[NDArray[Any]]
    """Fields of the transitions, stacked: ``dtype[batch, ...]``."""


class NotebookBuffer(Protocol):
    """Interface of the buffers."""

    name: ClassVar[str]

    def __init__(self, transitions: Sequence[Transition], priorities: Sequence[float], alpha: float) -> None:
        """Store these transitions; ``alpha`` is the exponent of the priorities."""

    def sample(self, batch_size: int, rng: np.random.Generator) -> NotebookBatch:
        """Draw by priority."""

    def update(self, places: Sequence[int], priorities: Sequence[float]) -> None:
        """Set priorities."""


class RecursiveSumTree:
    """Draws proportionally: a recursively traversed binary tree of sums over an array of objects."""

    name: ClassVar[str] = "recursive sum tree"

    def __init__(self, transitions: Sequence[Transition], priorities: Sequence[float], alpha: float) -> None:
        """Store these transitions; ``alpha`` is the exponent of the priorities."""
        self._alpha = alpha
        self._count = len(transitions)
        self._tree = np.zeros(2 * self._count - 1)
        self._data = np.empty(self._count, dtype=object)
        self._data[:] = transitions
        self._tree[self._count - 1 :] = np.asarray(priorities) ** alpha
        for node in range(self._count - 2, -1, -1):
            self._tree[node] = self._tree[2 * node + 1] + self._tree[2 * node + 2]

    def sample(self, batch_size: int, rng: np.random.Generator) -> NotebookBatch:
        """Draw one transition from each of ``batch_size`` equal segments of the total mass."""
        total = self._tree[0]
        segment = total / batch_size
        leaves = [self._retrieve(0, rng.uniform(segment * i, segment * (i + 1))) for i in range(batch_size)]
        places = [leaf - (self._count - 1) for leaf in leaves]
        probabilities = np.array([self._tree[leaf] / total for leaf in leaves])
        return NotebookBatch(places, probabilities, _stacked([self._data[place] for place in places]))

    def update(self, places: Sequence[int], priorities: Sequence[float]) -> None:
        """Set priorities one by one."""
        for place, priority in zip(places, priorities, strict=True):
            leaf = place + self._count - 1
            change = priority**self._alpha - self._tree[leaf]
            self._tree[leaf] += change
            self._propagate(leaf, change)

    def _propagate(self, node: int, change: float) -> None:
        if node == 0:
            return
        parent = (node - 1) // 2
        self._tree[parent] += change
        self._propagate(parent, change)

    def _retrieve(self, node: int, value: float) -> int:
        left = 2 * node + 1
        if left >= len(self._tree):
            return node
        if value <= self._tree[left]:
            return self._retrieve(left, value)
        return self._retrieve(left + 1, value - self._tree[left])


class DequeChoice:
    """Draws proportionally: deques, and `numpy.random.Generator.choice` with the probabilities of all rows."""

    name: ClassVar[str] = "deque and numpy choice"

    def __init__(self, transitions: Sequence[Transition], priorities: Sequence[float], alpha: float) -> None:
        """Store these transitions; ``alpha`` is the exponent of the priorities."""
        self._alpha = alpha
        self._data = deque(transitions, maxlen=len(transitions))
        self._priorities = deque(priorities, maxlen=len(transitions))

    def sample(self, batch_size: int, rng: np.random.Generator) -> NotebookBatch:
        """Draw transitions independently of each other."""
        masses = np.array(self._priorities) ** self._alpha
        probabilities = masses / masses.sum()
        chosen = rng.choice(len(self._data), batch_size, p=probabilities)
        return NotebookBatch(
            chosen.tolist(), probabilities[chosen], _stacked([self._data[place] for place in chosen.tolist()])
        )

    def update(self, places: Sequence[int], priorities: Sequence[float]) -> None:
        """Set priorities."""
        for place, priority in zip(places, priorities, strict=True):
            self._priorities[place] = priority


class SortedList:
    """Draws by rank: a list that bisection keeps sorted by priority, largest first. Ties put the newest row first."""

    name: ClassVar[str] = "sorted list with bisect"

    def __init__(self, transitions: Sequence[Transition], priorities: Sequence[float], alpha: float) -> None:
        """Store these transitions; ``alpha`` is the exponent of the ranks."""
        self._data = list(transitions)
        self._priorities = list(priorities)
        self._order = sorted((-priority, -place) for place, priority in enumerate(priorities))
        masses = np.arange(1, len(transitions) + 1, dtype=np.float64) ** -alpha
        self._probabilities = masses / masses.sum()
        self._cumulated = np.cumsum(self._probabilities)

    def sample(self, batch_size: int, rng: np.random.Generator) -> NotebookBatch:
        """Draw one transition from each of ``batch_size`` equal segments of the total mass."""
        points = (np.arange(batch_size) + rng.random(batch_size)) / batch_size * self._cumulated[-1]
        ranks = np.searchsorted(self._cumulated, points, side="right").clip(max=len(self._data) - 1)
        places = [-self._order[rank][1] for rank in ranks.tolist()]
        return NotebookBatch(places, self._probabilities[ranks], _stacked([self._data[place] for place in places]))

    def update(self, places: Sequence[int], priorities: Sequence[float]) -> None:
        """Set priorities: remove each row from the list, and insert it at its new position."""
        for place, priority in zip(places, priorities, strict=True):
            del self._order[bisect.bisect_left(self._order, (-self._priorities[place], -place))]
            bisect.insort(self._order, (-priority, -place))
            self._priorities[place] = priority


BUFFERS: tuple[type[NotebookBuffer], ...] = (RecursiveSumTree, DequeChoice, SortedList)
"""All of these buffers."""


def _stacked(transitions: Sequence[Transition]) -> list[NDArray[Any]]:
    return [np.stack(values) for values in zip(*transitions, strict=True)]
