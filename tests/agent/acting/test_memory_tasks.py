"""The environments that need memory."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from replay_agent.memory_tasks import (
    CORRIDOR,
    EAST,
    GOAL_REWARD,
    MISTAKE_REWARD,
    NORTH,
    SOUTH,
    TMAZE_STEPS,
    WEST,
    TMaze,
)

MODULE = "replay_agent.memory_tasks"
CUES = {(0, 1, 1): NORTH, (1, 1, 0): SOUTH}
CORRIDOR_SIGHT, JUNCTION_SIGHT = (1, 0, 1), (0, 1, 0)


def test_the_maze_is_what_gymnasium_expects() -> None:
    check_env(TMaze())


def test_a_masked_cartpole_is_a_cartpole_without_velocities() -> None:
    masked, whole = gymnasium.make(f"{MODULE}:MaskedCartPole-v1"), gymnasium.make("CartPole-v1")
    seen, expected = masked.reset(seed=3)[0], whole.reset(seed=3)[0]
    for step in range(20):
        assert masked.observation_space.contains(seen)
        assert np.array_equal(seen, expected[[0, 2]])
        seen, *rest = masked.step(step % 2)
        expected, *others = whole.step(step % 2)
        assert rest[:3] == others[:3]
    assert masked.spec is not None
    assert masked.spec.max_episode_steps == 500


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("remembers", [True, False])
def test_only_the_turn_that_the_cue_named_pays(seed: int, remembers: bool) -> None:
    maze = TMaze()
    cue, _ = maze.reset(seed=seed)
    for place in range(1, CORRIDOR + 1):
        seen, reward, terminated, truncated, _ = maze.step(np.int64(EAST))
        assert tuple(seen) == (JUNCTION_SIGHT if place == CORRIDOR else CORRIDOR_SIGHT)
        assert (reward, terminated, truncated) == (0.0, False, False)
    goal = CUES[tuple(cue)]
    turn = goal if remembers else NORTH + SOUTH - goal
    _, reward, terminated, _, _ = maze.step(np.int64(turn))
    assert (reward, terminated) == (GOAL_REWARD if remembers else MISTAKE_REWARD, True)


def test_cues_are_random() -> None:
    maze = TMaze()
    assert {tuple(maze.reset(seed=seed)[0]) for seed in range(20)} == set(CUES)


def test_moves_against_a_wall_cost_and_leave_the_place() -> None:
    maze = TMaze(length=2)
    cue, _ = maze.reset(seed=0)
    for move in (WEST, NORTH, SOUTH):
        seen, reward, terminated, _, _ = maze.step(np.int64(move))
        assert (tuple(seen), reward, terminated) == (tuple(cue), MISTAKE_REWARD, False)
    maze.step(np.int64(EAST))
    assert tuple(maze.step(np.int64(WEST))[0]) == tuple(cue)
    for _ in range(2):
        maze.step(np.int64(EAST))
    seen, reward, *_ = maze.step(np.int64(EAST))
    assert (tuple(seen), reward) == (JUNCTION_SIGHT, MISTAKE_REWARD)


def test_a_walk_without_end_is_truncated() -> None:
    env = gymnasium.make(f"{MODULE}:TMaze-v0")
    env.reset(seed=0)
    ends = [env.step(np.int64(WEST))[2:4] for _ in range(TMAZE_STEPS)]
    assert ends[-1] == (False, True)
    assert set(ends[:-1]) == {(False, False)}
