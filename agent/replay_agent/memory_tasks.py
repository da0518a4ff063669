"""Environments that need memory; importing this module registers them with Gymnasium.

    replay-train --algorithm r2d2 --env replay_agent.memory_tasks:TMaze-v0
    gymnasium.make("replay_agent.memory_tasks:MaskedCartPole-v1")

`MaskedCartPole-v1` is CartPole-v1 without velocities. In `TMaze-v0`, only the first observation shows the goal's side.
"""

from __future__ import annotations

from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import TransformObservation
from numpy.typing import NDArray

CARTPOLE_STEPS: Final = 500
POSITIONS: Final = [0, 2]
"""Indices of the cart's position and the pole's angle in CartPole's observation."""

CORRIDOR: Final = 20
TMAZE_STEPS: Final = 10 * CORRIDOR
GOAL_REWARD: Final = 4.0
MISTAKE_REWARD: Final = -0.1
NORTH, EAST, SOUTH, WEST = range(4)
"""Actions in a T-maze."""


def make_masked_cartpole(**options: Any) -> gymnasium.Env[Any, Any]:
    """Make CartPole-v1 without velocities. Observations are float32[2]: the cart's position and the pole's angle."""
    env = CartPoleEnv(**options)
    assert isinstance(env.observation_space, spaces.Box)
    high = env.observation_space.high[POSITIONS]
    return TransformObservation(env, lambda obs: obs[POSITIONS], spaces.Box(-high, high))


class TMaze(gymnasium.Env[NDArray[np.float32], np.int64]):
    """The T-maze of Bakker (2001, "Reinforcement Learning with Long Short-Term Memory").

    A corridor leads east from the start to a junction. The observation at the start shows whether the goal is north or
    south of the junction. All positions in the corridor look the same. At the junction, a turn toward the goal gives a
    reward of 4 and a turn in the other direction -0.1; both end the episode. A move against a wall gives -0.1. Without
    memory, no policy has a mean return above 1.95.

    Observations are float32[3]. At the start, they are (0, 1, 1) if the goal is north and (1, 1, 0) if it is south. In
    the corridor, they are (1, 0, 1), and at the junction (0, 1, 0).
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own attribute

    def __init__(self, length: int = CORRIDOR) -> None:
        """Make a maze whose junction is ``length`` moves (1 or more) from the start."""
        self.observation_space = spaces.Box(0.0, 1.0, (3,), np.float32)
        self.action_space = spaces.Discrete(4)
        self._length = length
        self._place = 0
        self._goal = NORTH

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Return to the start, with a goal on a random side."""
        super().reset(seed=seed)
        self._place = 0
        self._goal = NORTH if self.np_random.random() < 0.5 else SOUTH
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Move one position in the direction of the action."""
        if action in (NORTH, SOUTH):
            at_junction = self._place == self._length
            reward = GOAL_REWARD if at_junction and action == self._goal else MISTAKE_REWARD
            return self._observation(), reward, at_junction, False, {}
        before = self._place
        self._place = min(max(before + (1 if action == EAST else -1), 0), self._length)
        return self._observation(), 0.0 if self._place != before else MISTAKE_REWARD, False, False, {}

    def _observation(self) -> NDArray[np.float32]:
        if self._place == 0:
            return np.array((0, 1, 1) if self._goal is NORTH else (1, 1, 0), np.float32)
        return np.array((0, 1, 0) if self._place == self._length else (1, 0, 1), np.float32)


gymnasium.register("MaskedCartPole-v1", f"{__name__}:make_masked_cartpole", max_episode_steps=CARTPOLE_STEPS)
gymnasium.register("TMaze-v0", f"{__name__}:TMaze", max_episode_steps=TMAZE_STEPS)
