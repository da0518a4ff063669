"""Q-learning on the Blind Cliffwalk, one transition at a time (Schaul et al. 2016, appendix B.1, equations 2 and 3).

Q(s, a) is either an entry of a table, or linear in the features of s. These are an indicator of each state, and a
constant. Each action has separate weights. The few dozen values are plain floats, which are faster than arrays. The
squared error to the true values is updated incrementally.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Final

import numpy as np

from experiments.cliffwalk.walk import ACTIONS, Cliffwalk, Transition

STEP_SIZE: Final = 0.25
"""Eta of equation 3."""
INITIAL_STD: Final = 0.1
"""Standard deviation of the initial parameters, which are normally distributed with mean 0: the paper's N(0, 0.1)."""
LEARNED_ERROR: Final = 1e-3
"""The values count as learned when their mean squared error to the true values is below this."""


class Representation(StrEnum):
    """Representation of Q(s, a)."""

    TABULAR = "tabular"
    LINEAR = "linear"


class QLearner:
    """Learns the values of one walk."""

    def __init__(
        self,
        walk: Cliffwalk,
        representation: Representation,
        rng: np.random.Generator,
        step_size: float = STEP_SIZE,
        initial_std: float = INITIAL_STD,
    ) -> None:
        """Draw initial parameters.

        Args:
            walk: the walk to learn.
            representation: how the values are represented.
            rng: draws the parameters.
            step_size: step size of an update.
            initial_std: standard deviation of the parameters.
        """
        self.walk = walk
        self._step_size = step_size
        self._gamma = walk.gamma
        self._rows = walk.states
        # A tabular learner is a linear learner whose constant feature is 0.
        self._constant = float(representation is Representation.LINEAR)
        self._weights: list[list[float]] = rng.normal(0.0, initial_std, (ACTIONS, walk.states)).tolist()
        self._biases: list[float] = rng.normal(0.0, initial_std, ACTIONS).tolist()
        self._true = [[walk.true_value(state, action) for state in range(walk.states)] for action in range(ACTIONS)]
        errors = [self._errors(action) for action in range(ACTIONS)]
        self._error_sums = [math.fsum(values) for values in errors]
        self._squares = math.fsum(error * error for values in errors for error in values)
        self._learned_squares = LEARNED_ERROR * ACTIONS * walk.states

    @property
    def is_learned(self) -> bool:
        """Whether the mean squared error to the true values is below `LEARNED_ERROR`."""
        # The incrementally updated error accumulates rounding errors, so check the exact sum.
        return self._squares < self._learned_squares and self.mean_squared_error() < LEARNED_ERROR

    def mean_squared_error(self) -> float:
        """Return the mean squared error over all states and actions, computed from scratch."""
        errors = (error for action in range(ACTIONS) for error in self._errors(action))
        return math.fsum(error * error for error in errors) / (ACTIONS * self._rows)

    def value(self, state: int, action: int) -> float:
        """Return Q(s, a)."""
        return self._weights[action][state] + self._constant * self._biases[action]

    def td_error(self, transition: Transition) -> float:
        """Return the TD error of a transition (equation 2)."""
        target = transition.reward
        if not transition.terminated:
            target += self._gamma * max(self.value(transition.next_state, action) for action in range(ACTIONS))
        return target - self.value(transition.state, transition.action)

    def update(self, transition: Transition) -> float:
        """Apply equation 3 and return the TD error before the update."""
        td_error = self.td_error(transition)
        state, action = transition.state, transition.action
        step = self._step_size * td_error
        self._squares += self._growth(state, action, step)
        self._error_sums[action] += step + self._rows * self._constant * step
        self._weights[action][state] += step
        self._biases[action] += self._constant * step
        return td_error

    def loss_growth(self, transition: Transition) -> float:
        """Return how much an update with this transition would increase the total squared error to the true values."""
        return self._growth(transition.state, transition.action, self._step_size * self.td_error(transition))

    def _growth(self, state: int, action: int, step: float) -> float:
        """Return the growth of the total squared error if ``step`` is added to a weight, and to the bias if used."""
        shift = self._constant * step
        error = self.value(state, action) - self._true[action][state] + shift
        return shift * (2.0 * self._error_sums[action] + self._rows * shift) + step * (2.0 * error + step)

    def _errors(self, action: int) -> list[float]:
        return [self.value(state, action) - true for state, true in enumerate(self._true[action])]
