"""TD errors of n-step transitions, compared with an oracle that sums over the whole episode."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_agent.replay.rows import NStepErrors

NUMBERS = st.floats(-10, 10, width=32)
EPISODES = st.lists(
    st.tuples(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=12), NUMBERS), min_size=1, max_size=4
)


def expected(steps: list[tuple[float, float]], final_value: float, step: int, n_step: int, gamma: float) -> float:
    """The error of a step, given the rewards and values of its episode, and the value after the last step."""
    end = min(step + n_step, len(steps))
    total = sum(gamma ** (index - step) * steps[index][0] for index in range(step, end))
    after = final_value if end == len(steps) else steps[end][1]
    return abs(total + gamma ** (end - step) * after - steps[step][1])


@given(episodes=EPISODES, n_step=st.integers(1, 6), gamma=st.sampled_from([0.0, 0.5, 0.9, 1.0]))
def test_each_step_has_one_error_as_soon_as_it_is_known(
    episodes: list[tuple[list[tuple[float, float]], float]], n_step: int, gamma: float
) -> None:
    errors = NStepErrors(n_step, gamma)
    for steps, final_value in episodes:
        known = 0
        for place, (reward, value) in enumerate(steps):
            is_last = place == len(steps) - 1
            next_value = final_value if is_last else steps[place + 1][1]
            found = errors.push(reward, value, next_value, is_last=is_last)
            due = len(steps) if is_last else max(0, place + 2 - n_step)
            assert found == pytest.approx(
                [expected(steps, final_value, step, n_step, gamma) for step in range(known, due)], rel=1e-6, abs=1e-6
            )
            known = due
