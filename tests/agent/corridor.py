"""Small test environments with a known optimal policy.

A corridor of five places: action 1 moves right, action 0 moves left, and the right end gives reward 1 and terminates.
Every step costs 0.1, and the episode is truncated after twenty steps. The optimal policy moves right four times, for a
return of 1 - 0.4. All observations share one array that is overwritten, as in some real environments.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation, TransformObservation, TransformReward
from numpy.typing import NDArray

PLACES = 5
STEP_REWARD = -0.1
GOAL_REWARD = 1.0
BEST_RETURN = GOAL_REWARD + (PLACES - 1) * STEP_REWARD
TIME_LIMIT = 20
PICTURE_WIDTH = 6
STACK = 3
RICHES = 50
CORRIDOR_ID = "tests.agent.corridor:Corridor-v0"
PICTURED_ID = "tests.agent.corridor:Pictured-v0"
STACKED_ID = "tests.agent.corridor:Stacked-v0"
CONTINUOUS_ID = "tests.agent.corridor:Continuous-v0"
NUMBERED_ID = "tests.agent.corridor:Numbered-v0"
RICH_ID = "tests.agent.corridor:Rich-v0"
BROKEN_ID = "tests.agent.corridor:Broken-v0"


class Corridor(gymnasium.Env[NDArray[np.float32], np.int64]):
    """See the module."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (PLACES,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._place = 0
        self._shared = np.zeros(PLACES, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self._place = 0
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self._place = max(0, self._place + (1 if action == 1 else -1))
        at_goal = self._place == PLACES - 1
        return self._observation(), STEP_REWARD + GOAL_REWARD * at_goal, at_goal, False, {}

    def _observation(self) -> NDArray[np.float32]:
        self._shared[:] = 0.0
        self._shared[self._place] = 1.0
        return self._shared


class Pictured(Corridor):
    """A corridor with images as observations: a row of bytes for every place, white at the current place."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (PLACES, PICTURE_WIDTH, 1), np.uint8)  # type: ignore[arg-type]

    def _observation(self) -> NDArray[Any]:
        picture = np.zeros((PLACES, PICTURE_WIDTH, 1), np.uint8)
        picture[self._place] = 255
        return picture


def make_rich() -> gymnasium.Env[Any, Any]:
    """A corridor with fifty times the reward."""
    return TransformReward(Corridor(), lambda reward: RICHES * float(reward))


def make_stacked() -> gymnasium.Env[Any, Any]:
    """A corridor with stacks of three frames as observations."""
    # The wrapper refers to earlier observations.
    return FrameStackObservation(TransformObservation(Corridor(), np.copy, None), STACK)


class Continuous(Corridor):
    """A corridor with continuous actions."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(-1.0, 1.0, (1,))  # type: ignore[assignment]


class Numbered(Corridor):
    """A corridor whose observation space is not a Box."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Discrete(PLACES)  # type: ignore[assignment]


class Broken(Corridor):
    """A corridor with NaN rewards."""

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, math.nan, terminated, truncated, info


gymnasium.register("Corridor-v0", "tests.agent.corridor:Corridor", max_episode_steps=TIME_LIMIT)
gymnasium.register("Pictured-v0", "tests.agent.corridor:Pictured", max_episode_steps=TIME_LIMIT)
gymnasium.register("Stacked-v0", "tests.agent.corridor:make_stacked", max_episode_steps=TIME_LIMIT)
gymnasium.register("Rich-v0", "tests.agent.corridor:make_rich", max_episode_steps=TIME_LIMIT)
gymnasium.register("Continuous-v0", "tests.agent.corridor:Continuous")
gymnasium.register("Numbered-v0", "tests.agent.corridor:Numbered")
gymnasium.register("Broken-v0", "tests.agent.corridor:Broken", max_episode_steps=TIME_LIMIT)
