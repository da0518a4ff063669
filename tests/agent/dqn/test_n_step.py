"""n-step transitions, compared with an oracle that sums over the whole episode."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_agent.dqn.n_step import NStep, Transition


@dataclass(frozen=True)
class Episode:
    rewards: list[float]
    terminated: bool


episodes = st.lists(
    st.builds(
        Episode,
        rewards=st.lists(st.floats(-10, 10, allow_nan=False, width=32), min_size=1, max_size=12),
        terminated=st.booleans(),
    ),
    min_size=1,
    max_size=4,
)


def observation(episode: int, step: int) -> np.ndarray:
    return np.array([episode, step], dtype=np.float32)


def played(accumulator: NStep, number: int, episode: Episode) -> list[Transition]:
    rows = []
    last = len(episode.rewards) - 1
    for step, reward in enumerate(episode.rewards):
        rows += accumulator.push(
            observation(number, step),
            step,
            reward,
            observation(number, step + 1),
            terminated=episode.terminated and step == last,
            truncated=not episode.terminated and step == last,
        )
    return rows


def expected_row(number: int, episode: Episode, step: int, n_step: int, gamma: float) -> Transition:
    end = min(step + n_step, len(episode.rewards))
    reward = sum(gamma ** (index - step) * episode.rewards[index] for index in range(step, end))
    reaches_terminal = episode.terminated and end == len(episode.rewards)
    discount = 0.0 if reaches_terminal else gamma ** (end - step)
    return Transition(observation(number, step), step, reward, discount, observation(number, end))


@given(played_episodes=episodes, n_step=st.integers(1, 6), gamma=st.sampled_from([0.0, 0.5, 0.9, 1.0]))
def test_every_step_yields_one_row_that_spans_what_it_should(
    played_episodes: list[Episode], n_step: int, gamma: float
) -> None:
    accumulator = NStep(n_step, gamma)
    for number, episode in enumerate(played_episodes):
        rows = played(accumulator, number, episode)
        assert len(rows) == len(episode.rewards)
        for step, row in enumerate(rows):
            expected = expected_row(number, episode, step, n_step, gamma)
            assert row.obs.tolist() == expected.obs.tolist()
            assert row.action == expected.action
            assert row.reward == pytest.approx(expected.reward, abs=1e-9)
            assert row.discount == pytest.approx(expected.discount)
            assert row.next_obs.tolist() == expected.next_obs.tolist()


def test_truncation_bootstraps_from_the_last_observation_of_the_episode_with_the_steps_it_spans() -> None:
    first, second = played(NStep(n_step=3, gamma=0.5), 7, Episode([1.0, 2.0], terminated=False))
    assert (first.reward, first.discount, first.next_obs.tolist()) == (2.0, 0.25, [7, 2])
    assert (second.reward, second.discount, second.next_obs.tolist()) == (2.0, 0.5, [7, 2])


def test_termination_stops_bootstrapping_for_every_row_that_reaches_it() -> None:
    rows = played(NStep(n_step=3, gamma=0.5), 0, Episode([1.0] * 4, terminated=True))
    assert [row.discount for row in rows] == [0.125, 0.0, 0.0, 0.0]


def test_a_span_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="n_step must be 1 or more, got 0"):
        NStep(0, 0.99)
