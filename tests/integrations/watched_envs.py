"""Wrappers that note plainly what `reset` and `step` of environments give, to compare with what was recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from replay_client import Table
from replay_client.spaces import flatten_value
from replay_proto.v1 import replay_pb2

from tests.integrations.random_spaces import Made, bits, stacked


class Notes:
    """The episodes of one environment."""

    def __init__(self) -> None:
        self._made: list[Made] = []

    def begin(self, obs: Any) -> None:
        """An episode begins; if another one goes on, it is truncated."""
        if self._made and not self.is_over:
            self._made[-1].is_truncated = True
        self._made.append(Made([obs]))

    def step(self, obs: Any, action: Any, reward: Any, terminated: Any, truncated: Any) -> None:
        made = self._made[-1]
        made.observations.append(obs)
        made.actions.append(action)
        made.rewards.append(float(reward))
        made.is_terminated, made.is_truncated = bool(terminated), bool(truncated)

    @property
    def is_over(self) -> bool:
        """Whether the newest episode is over."""
        return self._made[-1].is_terminated or self._made[-1].is_truncated

    @property
    def finished(self) -> list[Made]:
        """The episodes with steps that are over."""
        return [made for made in self._made if made.rewards and (made.is_terminated or made.is_truncated)]


class Watched(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment, with or without `Autoreset` inside."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.notes = [Notes()]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        self.notes[0].begin(copied(obs))
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        given = copied(action)
        obs, reward, terminated, truncated, info = self.env.step(action)
        if self.notes[0].is_over:  # the step only resets
            self.notes[0].begin(copied(obs))
        else:
            self.notes[0].step(copied(obs), given, reward, terminated, truncated)
        return obs, reward, terminated, truncated, info


class WatchedVector(VectorWrapper):
    """A vector environment in any autoreset mode."""

    def __init__(self, envs: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(envs)
        self.notes = [Notes() for _ in range(envs.num_envs)]

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        mask = copied((options or {}).get("reset_mask", np.ones(self.num_envs, bool)))
        obs, infos = self.env.reset(seed=seed, options=options)
        for index in np.flatnonzero(mask).tolist():
            self.notes[index].begin(part(copied(obs), index))
        return obs, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        given = copied(actions)
        obs, rewards, terminated, truncated, infos = self.env.step(actions)
        seen, is_same_step = copied(obs), self.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        for index, notes in enumerate(self.notes):
            if notes.is_over:  # the step only resets
                notes.begin(part(seen, index))
                continue
            is_reset = is_same_step and bool(terminated[index] or truncated[index])
            after = final(infos, index) if is_reset else part(seen, index)
            notes.step(after, part(given, index), rewards[index], terminated[index], truncated[index])
            if is_reset:
                notes.begin(part(seen, index))
        return obs, rewards, terminated, truncated, infos


def copied(value: Any) -> Any:
    """Copy a value, whose leaves may be tensors of any library, to arrays."""
    if isinstance(value, Mapping):
        return {name: copied(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return tuple(copied(part) for part in value)
    return np.array(value)


def part(value: Any, index: int) -> Any:
    """The value of one environment of a vector environment."""
    if isinstance(value, Mapping):
        return {name: part(inner, index) for name, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(part(inner, index) for inner in value)
    return value[index]


def final(infos: Any, index: int) -> Any:
    """The final observation of an environment in `SAME_STEP` mode."""
    return copied(infos["final_obs"][index] if isinstance(infos, Mapping) else infos[index]["final_obs"])


def noted(watched: Watched | WatchedVector, table: Table) -> list[Any]:
    """The finished episodes of environments, bit by bit in the dtypes of a table."""
    found = []
    for made in (made for notes in watched.notes for made in notes.finished):
        values = flatten_value("obs", stacked(made.observations)) | flatten_value("action", stacked(made.actions))
        values["reward"] = np.array(made.rewards)
        found.append((in_order(values, table), made.is_terminated))
    return sorted(found)


def stored(table: Table) -> list[Any]:
    """The finished episodes in a table, in the same form."""
    found = []
    for rows in table.rows(order="episode"):
        assert rows.steps is not None
        assert rows.ends is not None
        start = 0
        for place in np.flatnonzero(np.append(np.diff(rows.steps) != 1, True)).tolist():
            if rows.ends[place]:
                values = {
                    name: column[start : place + name.startswith("obs")] for name, column in rows.items()
                }  # the row that closes an episode has no action
                found.append((in_order(values, table), rows.ends[place] == replay_pb2.EPISODE_END_TERMINATED))
            start = place + 1
    return sorted(found)


def in_order(values: Mapping[str, Any], table: Table) -> Any:
    return tuple((name, bits(np.asarray(values[name], table.schema[name].dtype))) for name in sorted(values))
