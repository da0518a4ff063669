"""Records the steps of Gymnasium environments in tables of steps.

    from replay_client.gymnasium import RecordSteps

    envs = gymnasium.make_vec("CartPole-v1", num_envs=8)
    with table.writer(streams=8) as writer:
        envs = RecordSteps(envs, writer)
        obs, _ = envs.reset()
        while ...:
            obs, *_ = envs.step(policy(obs))

Each step is stored once: the observation before it, the action and the reward. The final observation is stored in the
row that closes the episode. An episode counts as truncated if a time limit or a reset ends it. Steps in which a vector
environment only resets are not stored. All autoreset modes of Gymnasium 1.x are supported. In ``SAME_STEP`` mode,
Gymnasium does not copy the final observation, so an environment must not reuse its array in `reset`.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, NamedTuple, overload

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from numpy.typing import NDArray

from replay_client._writing.writer_stream import WriterStream
from replay_client.errors import InvalidArgumentError
from replay_client.sync.writer import Writer


class _Names(NamedTuple):
    """Names of the columns for observation, action and reward; None: not stored."""

    obs: str
    action: str | None
    reward: str | None

    def step(self, obs: Any, action: Any, reward: Any, others: Mapping[str, Any]) -> dict[str, Any]:
        """Build the row of a step, or the columns of one step in all environments of a vector environment."""
        named = ((self.obs, obs), (self.action, action), (self.reward, reward))
        return {name: value for name, value in named if name is not None} | dict(others)


class RecordedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose steps are recorded; see `RecordSteps`."""

    def __init__(self, env: gymnasium.Env[Any, Any], stream: WriterStream, names: _Names) -> None:
        super().__init__(env)
        self._stream = stream
        self._names = names
        self._obs: Any = None
        self._is_running = False
        self._others: dict[str, Any] = {}

    def with_next_step(self, **columns: Any) -> None:
        """Set additional columns of the next step's row, such as the state of a recurrent network."""
        self._others.update(columns)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment. This truncates a running episode."""
        if self._is_running:
            self._stream.end_episode({self._names.obs: self._obs})
        obs, info = self.env.reset(seed=seed, options=options)
        self._obs, self._is_running = deepcopy(obs), True  # environments may reuse their arrays
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment and record the step.

        Raises:
            ReplayError: a step could not be sent. The rest of its episode is not recorded.
        """
        obs, reward, terminated, truncated, info = self.env.step(action)
        row = self._names.step(self._obs, action, reward, self._others)
        was_running, self._is_running = self._is_running, False
        self._others, self._obs = {}, deepcopy(obs)
        if was_running:
            try:
                self._stream.append(row)
                if terminated or truncated:
                    self._stream.end_episode({self._names.obs: obs}, terminated=bool(terminated))
            except BaseException:
                self._stream.abandon_episode()
                raise
            self._is_running = not (terminated or truncated)
        return obs, reward, terminated, truncated, info


class RecordedVectorEnv(VectorWrapper):
    """A vector environment whose steps are recorded, each environment in its own stream; see `RecordSteps`."""

    def __init__(self, envs: VectorEnv[Any, Any, Any], writer: Writer, names: _Names) -> None:
        super().__init__(envs)
        mode = envs.metadata.get("autoreset_mode")
        if not isinstance(mode, AutoresetMode):
            raise InvalidArgumentError.of_field("envs.metadata['autoreset_mode']", "an AutoresetMode", repr(mode))
        self._mode = mode
        self._writer = writer
        self._names = names
        self._obs: Any = None
        self._steps_next = np.zeros(self.num_envs, bool)  # whether the next step of each environment is a real one
        self._is_lost = np.zeros(self.num_envs, bool)  # whether recording of its current episode has failed
        self._others: dict[str, Any] = {}

    def with_next_step(self, **columns: Any) -> None:
        """Set additional columns of the next rows, ``[num_envs, *shape]`` by column."""
        self._others.update(columns)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those in ``options["reset_mask"]``. This truncates running episodes."""
        mask = np.array((options or {}).get("reset_mask", np.ones(self.num_envs, bool)))
        is_running = mask & self._steps_next & ~self._is_lost
        if is_running.any():
            self._writer.end_episodes(is_running, {self._names.obs: self._obs})
        obs, infos = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]  # also a list
        self._steps_next |= mask
        self._is_lost &= ~mask
        self._obs = deepcopy(obs)  # environments may reuse their arrays
        return obs, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the environments and record their steps.

        Raises:
            ReplayError: steps could not be sent. The rest of the current episodes is not recorded.
        """
        obs, rewards, terminated, truncated, infos = self.env.step(actions)
        rows = self._names.step(self._obs, actions, rewards, self._others)
        is_recorded = self._steps_next & ~self._is_lost
        is_over = np.logical_or(terminated, truncated) & self._steps_next
        self._others, self._obs = {}, deepcopy(obs)
        self._is_lost &= ~is_over
        if self._mode is AutoresetMode.NEXT_STEP:
            self._steps_next = ~is_over
        elif self._mode is AutoresetMode.DISABLED:
            self._steps_next &= ~is_over
        try:
            self._writer.append_all(rows, where=is_recorded)
            self._end(is_over & is_recorded, terminated, obs, infos)
        except BaseException:
            for stream in is_recorded.nonzero()[0].tolist():
                self._writer[stream].abandon_episode()
            self._is_lost |= is_recorded & ~is_over
            raise
        return obs, rewards, terminated, truncated, infos

    def _end(self, done: NDArray[np.bool_], terminated: Any, obs: Any, infos: Mapping[str, Any]) -> None:
        """End the episodes in ``done``. Final observations are in ``obs`` or, in ``SAME_STEP`` mode, in ``infos``."""
        if self._mode is not AutoresetMode.SAME_STEP:
            if done.any():
                self._writer.end_episodes(done, {self._names.obs: obs}, terminated=terminated)
            return
        for stream in done.nonzero()[0].tolist():
            final = {self._names.obs: _part(infos["final_obs"], stream)}
            self._writer[stream].end_episode(final, terminated=bool(terminated[stream]))


@overload
def RecordSteps(
    envs: VectorEnv[Any, Any, Any],
    writer: Writer,
    *,
    obs: str = "obs",
    action: str | None = "action",
    reward: str | None = "reward",
) -> RecordedVectorEnv: ...
@overload
def RecordSteps(
    envs: gymnasium.Env[Any, Any],
    writer: Writer | WriterStream,
    *,
    obs: str = "obs",
    action: str | None = "action",
    reward: str | None = "reward",
) -> RecordedEnv: ...
def RecordSteps(  # noqa: N802 - used like Gymnasium's wrappers
    envs: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any],
    writer: Writer | WriterStream,
    *,
    obs: str = "obs",
    action: str | None = "action",
    reward: str | None = "reward",
) -> RecordedEnv | RecordedVectorEnv:
    """Wrap an environment or a vector environment, so that its steps are recorded.

    Args:
        envs: an environment, or a vector environment.
        writer: a writer of a table of steps, with one stream per environment. For a single environment, it may also be
            one stream, ``writer[i]``.
        obs: the column of observations; nested ones are ``obs/name``.
        action: the column of actions; None: not stored.
        reward: the column of rewards; None: not stored.

    Returns:
        The wrapped environments: `RecordedEnv` or `RecordedVectorEnv`.

    Raises:
        InvalidArgumentError: the writer has another number of streams, its table is not a table of steps, or the vector
            environment does not specify its autoreset mode.
    """
    names = _Names(obs, action, reward)
    if isinstance(writer, Writer) and writer.steps is None:
        raise InvalidArgumentError.of_field("writer", "a writer of a table with steps", repr(writer))
    if isinstance(envs, VectorEnv):
        if not isinstance(writer, Writer) or len(writer) != envs.num_envs:
            raise InvalidArgumentError.of_field("writer", f"a writer with {envs.num_envs} streams", repr(writer))
        return RecordedVectorEnv(envs, writer, names)
    if isinstance(writer, Writer):
        if len(writer) != 1:
            raise InvalidArgumentError.of_field("writer", "one stream, such as writer[0]", f"{len(writer)} streams")
        writer = writer[0]
    return RecordedEnv(envs, writer, names)


def _part(observations: Any, index: int) -> Any:
    """Return the observation of one environment from the (possibly nested) observations of all."""
    if isinstance(observations, Mapping):
        return {name: _part(part, index) for name, part in observations.items()}
    if isinstance(observations, tuple):
        return tuple(_part(part, index) for part in observations)
    return observations[index]
