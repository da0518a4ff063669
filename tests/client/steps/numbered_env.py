"""An environment that numbers its observations, and remembers the steps that it really made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from replay_proto.v1 import replay_pb2


@dataclass
class Made:
    """One episode that an environment made."""

    first: int
    """The first observation."""
    steps: list[tuple[int, int, float]] = field(default_factory=list)
    """Observation, action and reward of each step."""
    final: int | None = None
    """The observation after the last step; None: the episode goes on."""
    end: int = replay_pb2.EPISODE_END_UNSPECIFIED
    """An `EpisodeEnd`."""


class NumberedEnv(gymnasium.Env[Any, int]):
    """Episodes of 1 to 4 steps, which end in a terminal state or are truncated; never two equal observations."""

    def __init__(
        self, number: int, *, is_nested: bool = False, is_endless: bool = False, reuses_arrays: bool = True
    ) -> None:
        self._next = 1000 * number
        self._is_nested = is_nested
        self._is_endless = is_endless
        self._reuses_arrays = reuses_arrays
        self._rng = np.random.default_rng(number)
        self._array = np.empty(2, np.int64)
        box = spaces.Box(-1, 10**6, (2,), np.int64)
        self.observation_space = spaces.Dict({"a": box, "b": spaces.Discrete(10**6)}) if is_nested else box
        self.action_space = spaces.Discrete(10)  # type: ignore[assignment]  # numbers of NumPy are numbers
        self.made: list[Made] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self.made and self.made[-1].final is None and self.made[-1].steps:
            self._end(replay_pb2.EPISODE_END_TRUNCATED)
        elif self.made and self.made[-1].final is None:
            self.made.pop()
        self._next += 1
        self.made.append(Made(self._next))
        self._length = int(self._rng.integers(1, 5))
        return self._observation(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        episode = self.made[-1]
        assert episode.final is None, "stepped after the end"
        reward = float(self._next % 7)
        episode.steps.append((self._next, int(action), reward))
        self._next += 1
        is_over = len(episode.steps) == self._length and not self._is_endless
        terminated = is_over and bool(self._rng.integers(2))
        if is_over:
            self._end(replay_pb2.EPISODE_END_TERMINATED if terminated else replay_pb2.EPISODE_END_TRUNCATED)
        return self._observation(), reward, terminated, is_over and not terminated, {}

    def truncate(self) -> None:
        """Take note that a wrapper has ended the episode."""
        self._end(replay_pb2.EPISODE_END_TRUNCATED)

    def _end(self, end: int) -> None:
        self.made[-1].final, self.made[-1].end = self._next, end

    def _observation(self) -> Any:
        if not self._reuses_arrays:
            self._array = np.empty(2, np.int64)
        self._array[:] = self._next
        return {"a": self._array, "b": np.int64(self._next)} if self._is_nested else self._array
