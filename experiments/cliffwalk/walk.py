"""The Blind Cliffwalk (Schaul et al. 2016, arXiv:1511.05952, section 3.1 and appendix B.1).

There are n states in a row and two actions. Which action is correct alternates from one state to the next. The correct
action leads to the next state. In the last state, it earns a reward of 1 and ends the episode. The wrong action ends
the episode without a reward. A random sequence of actions earns the reward with probability ``2**-n``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from replay_client import Column

ACTIONS: Final = 2
MIN_STATES: Final = 2
COLUMNS: Final = {
    "state": Column("int16"),
    "action": Column("int8"),
    "reward": Column("float32"),
    "next_state": Column("int16"),
    "terminated": Column("bool"),
}
"""Columns of a table of transitions."""


class Transition(NamedTuple):
    """One step of an episode, in plain numbers."""

    state: int
    action: int
    reward: float
    next_state: int
    terminated: bool


@dataclass(frozen=True)
class Cliffwalk:
    """A walk over a number of states.

    Raises:
        ValueError: there are fewer than two states.
    """

    states: int

    def __post_init__(self) -> None:
        """Check the number of states: with one, the discount would be 0."""
        if self.states < MIN_STATES:
            raise ValueError(f"a cliffwalk has at least {MIN_STATES} states, got {self.states}")

    @property
    def gamma(self) -> float:
        """Discount ``1 - 1 / n``, which keeps values on a similar scale for all n (appendix B.1)."""
        return 1.0 - 1.0 / self.states

    @property
    def memory_size(self) -> int:
        """Number of transitions in the episodes of all ``2**n`` sequences of actions: ``2**(n+1) - 2``."""
        return int(2 ** (self.states + 1)) - 2

    def right_action(self, state: int) -> int:
        """Return the correct action in a state."""
        return state % ACTIONS

    def step(self, state: int, action: int) -> Transition:
        """Return the transition for a state and an action."""
        if action != self.right_action(state):
            return Transition(state, action, 0.0, state, True)
        if state == self.states - 1:
            return Transition(state, action, 1.0, state, True)
        return Transition(state, action, 0.0, state + 1, False)

    def true_value(self, state: int, action: int) -> float:
        """Return the value of an action under the optimal policy: a power of the discount, or 0 for a wrong action."""
        if action != self.right_action(state):
            return 0.0
        return float(self.gamma ** (self.states - 1 - state))

    def distinct_transitions(self) -> list[Transition]:
        """Return one transition of each kind, state by state, with action 0 before action 1."""
        return [self.step(state, action) for state in range(self.states) for action in range(ACTIONS)]

    def memory(self, rng: np.random.Generator) -> dict[str, NDArray[np.generic]]:
        """Return all transitions of all sequences of actions in random order, as columns of a table.

        All ``2**n`` sequences count, even if some differ only after the end of the episode. State s is reached by
        ``2**(n - s)`` of them, half of which take action 0 there.
        """
        kinds = self.distinct_transitions()
        copies = [2 ** (self.states - 1 - kind.state) for kind in kinds]
        order = rng.permutation(np.repeat(np.arange(len(kinds)), copies))
        return {
            name: np.array([getattr(kind, name) for kind in kinds], dtype=column.dtype)[order]
            for name, column in COLUMNS.items()
        }
