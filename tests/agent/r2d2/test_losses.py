from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from replay_agent.r2d2 import n_step_targets, rescaled, unscaled

EPSILONS = st.sampled_from([0.0, 1e-3, 1e-2, 1.0])
VALUES = st.floats(-1e6, 1e6)


@given(VALUES, EPSILONS)
def test_unscaled_values_are_those_before_the_rescaling(value: float, epsilon: float) -> None:
    there_and_back = unscaled(rescaled(torch.tensor(value, dtype=torch.float64), epsilon), epsilon)
    assert float(there_and_back) == pytest.approx(value, rel=1e-9, abs=1e-12)


@given(st.floats(-100.0, 100.0), EPSILONS)
def test_the_inverse_is_precise_in_single_precision(value: float, epsilon: float) -> None:
    there_and_back = unscaled(rescaled(torch.tensor(value), epsilon), epsilon)
    assert float(there_and_back) == pytest.approx(value, rel=2e-5, abs=1e-6)


@given(VALUES, EPSILONS)
def test_values_are_rescaled_as_in_the_paper(value: float, epsilon: float) -> None:
    expected = math.copysign(math.sqrt(abs(value) + 1) - 1, value) + epsilon * value
    assert float(rescaled(torch.tensor(value, dtype=torch.float64), epsilon)) == pytest.approx(expected, abs=1e-9)


class Episode:
    """The end of an episode as it lies in a sequence of ``places``: steps from place 0 on, then its final observation.

    Place p has value 10 + p, reward 1 + p and discount 0.5.
    """

    def __init__(self, steps: int, places: int, *, terminated: bool) -> None:
        self.values = torch.arange(10.0, 10.0 + places)
        self.mask = torch.arange(places) < steps
        self.rewards = torch.where(self.mask, torch.arange(1.0, 1.0 + places), 0.0)
        self.discounts = torch.where(self.mask, 0.5, 0.0)
        if terminated and steps <= places:
            self.discounts[steps - 1] = 0.0
        self.steps, self.is_terminated = min(steps, places), terminated

    def target(self, place: int, n_step: int) -> float:
        """The target of a step by its definition."""
        spanned = min(n_step, self.steps - place)
        total = sum(0.5**i * float(self.rewards[place + i]) for i in range(spanned))
        if self.is_terminated and place + spanned == self.steps:
            return total
        return total + 0.5**spanned * float(self.values[place + spanned])


@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 6), st.booleans())
def test_targets_have_n_steps_or_what_is_left_of_the_episode(
    steps: int, length: int, n_step: int, terminated: bool
) -> None:
    places = length + n_step
    episode = Episode(steps, places, terminated=terminated and steps <= places)
    of_batch = (part.unsqueeze(0) for part in (episode.values, episode.rewards, episode.discounts, episode.mask))
    values, rewards, discounts, mask = of_batch
    (targets,) = n_step_targets(values, rewards, discounts, mask, n_step)
    assert targets.shape == (length,)
    learned = range(min(steps, length))
    assert targets[: len(learned)].tolist() == pytest.approx([episode.target(place, n_step) for place in learned])
