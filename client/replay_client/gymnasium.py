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
environment, or Gymnasium's wrapper `Autoreset`, only resets are not stored. All autoreset modes of Gymnasium 1.x are
supported. In ``SAME_STEP`` mode, Gymnasium does not copy the final observation, so an environment must not reuse its
array in `reset`. A step that would belong to no episode raises `gymnasium.error.ResetNeeded` before it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, Final, NamedTuple, TypeAlias, overload

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.wrappers import AtariPreprocessing, Autoreset, MaxAndSkipObservation
from numpy.typing import ArrayLike, NDArray

from replay_client._rows.checks import as_array
from replay_client._writing.writer_stream import WriterStream
from replay_client.errors import InvalidArgumentError
from replay_client.sync.writer import Writer

_NO_PRIORITY: Final = (None, 0)
_RESET_NEEDED: Final = (
    "the episode is over, or none has begun, so the step would not be recorded; call reset() first, or wrap the "
    "environment in gymnasium.wrappers.Autoreset"
)


Transform: TypeAlias = Callable[[Any], Any]
"""Returns what to store of an observation, or of the observations of all environments of a vector environment."""
FinalValues: TypeAlias = Mapping[str, Any] | Callable[[Any], Mapping[str, Any]]
"""Values of other columns in the row that closes an episode, or a function that returns them for an ``info``."""


class _Recording(NamedTuple):
    """What is stored of each step; see `RecordSteps`."""

    obs: str
    action: str | None
    reward: str | None
    transform: Transform | None
    final: FinalValues | None

    def step(self, obs: Any, action: Any, reward: Any, others: Mapping[str, Any]) -> dict[str, Any]:
        """Build the row of a step, or the columns of one step in all environments of a vector environment."""
        named = ((self.obs, obs), (self.action, action), (self.reward, reward))
        return {name: value for name, value in named if name is not None} | dict(others)

    def end(self, obs: Any, info: Any) -> dict[str, Any]:
        """Build the row that closes an episode, or the columns of such rows."""
        others = self.final(info) if callable(self.final) else self.final
        return {self.obs: obs, **(others or {})}

    def stored(self, obs: Any) -> Any:
        """Return what to store of observations: a copy, because environments may reuse their arrays."""
        return _copied(obs if self.transform is None else self.transform(obs))


class RecordedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose steps are recorded; see `RecordSteps`."""

    def __init__(self, env: gymnasium.Env[Any, Any], stream: WriterStream, recording: _Recording) -> None:
        super().__init__(env)
        self._stream = stream
        self._recording = recording
        self._autoreset = _autoreset_of(env)
        self._obs: Any = None
        self._needs_reset = True
        self._info: Any = {}  # of the last step or reset
        self._is_lost = False  # whether recording of the current episode has failed
        self._others: dict[str, Any] = {}
        self._priority: tuple[float | None, int] = _NO_PRIORITY

    def with_next_step(self, *, priority: float | None = None, steps_ago: int = 0, **columns: Any) -> None:
        """Set additional columns of the next step's row, such as the state of a recurrent network.

        Args:
            priority: as for `WriterStream.append`. The TD error of a step is often known only in the next one, which
                then has ``steps_ago=1``.
            steps_ago: as for `WriterStream.append`.
            **columns: values by column.
        """
        self._others.update(columns)
        if priority is not None:
            self._priority = priority, steps_ago

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment. This truncates a running episode."""
        self._truncate()
        self._needs_reset = True  # also if the next line raises
        obs, info = self.env.reset(seed=seed, options=options)
        self._begin(obs, info)
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment and record the step. A step in which `Autoreset` resets is not recorded.

        Raises:
            ResetNeeded: the episode is over, or none has begun. The environment was not stepped.
            ReplayError: a step could not be sent. The rest of its episode is not recorded, as after an error of the
                environment.
        """
        if self._autoreset is not None and self._autoreset.autoreset:
            return self._step_that_resets(action)
        if self._needs_reset:
            raise ResetNeeded(_RESET_NEEDED)
        given = _copied(action)
        try:
            obs, reward, terminated, truncated, info = self.env.step(action)
        except BaseException:  # it may have made the step
            self._lose()
            raise
        row = self._recording.step(self._obs, given, reward, self._others)
        self._others, self._info, self._needs_reset = {}, info, bool(terminated or truncated)
        (priority, steps_ago), self._priority = self._priority, _NO_PRIORITY
        if not self._is_lost:
            try:
                self._obs = self._recording.stored(obs)
                self._stream.append(row, priority=priority, steps_ago=steps_ago)
                if self._needs_reset:
                    self._stream.end_episode(self._recording.end(self._obs, info), terminated=bool(terminated))
            except BaseException:
                self._lose()
                raise
        return obs, reward, terminated, truncated, info

    def _lose(self) -> None:
        """Record nothing more of the current episode."""
        self._is_lost = True
        self._others, self._priority = {}, _NO_PRIORITY
        self._stream.abandon_episode()

    def _step_that_resets(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Make a step in which `Autoreset` ignores the action and resets."""
        self._truncate()  # if a wrapper around `Autoreset` has concealed the end
        self._needs_reset = True
        obs, *others, info = self.env.step(action)
        self._others, self._priority = {}, _NO_PRIORITY
        self._begin(obs, info)
        return (obs, *others, info)

    def _truncate(self) -> None:
        if not self._needs_reset and not self._is_lost:
            self._stream.end_episode(self._recording.end(self._obs, self._info))

    def _begin(self, obs: Any, info: Any) -> None:
        self._obs, self._info = self._recording.stored(obs), info
        self._needs_reset = self._is_lost = False


class RecordedVectorEnv(VectorWrapper):
    """A vector environment whose steps are recorded, each environment in its own stream; see `RecordSteps`."""

    def __init__(self, envs: VectorEnv[Any, Any, Any], writer: Writer, recording: _Recording) -> None:
        super().__init__(envs)
        mode = envs.metadata.get("autoreset_mode")
        if not isinstance(mode, AutoresetMode):
            raise InvalidArgumentError.of_field("envs.metadata['autoreset_mode']", "an AutoresetMode", repr(mode))
        self._mode = mode
        self._writer = writer
        self._recording = recording
        self._obs: Any = None
        self._needs_reset = np.ones(self.num_envs, bool)  # which environments must be reset before the next step
        self._resets_next = np.zeros(self.num_envs, bool)  # which environments only reset in the next step
        self._is_lost = np.zeros(self.num_envs, bool)  # whether recording of its current episode has failed
        self._infos: Any = {}  # of the last step or reset
        self._others: dict[str, Any] = {}
        self._priorities: tuple[ArrayLike | None, int] = _NO_PRIORITY

    def with_next_step(self, *, priorities: ArrayLike | None = None, steps_ago: int = 0, **columns: Any) -> None:
        """Set additional columns of the next rows, ``[num_envs, *shape]`` by column.

        Args:
            priorities: float64[num_envs], as for `Writer.append_all`: NaN where it is not known, such as in an episode
                that has fewer than ``steps_ago`` steps.
            steps_ago: as for `WriterStream.append`.
            **columns: values by column.
        """
        self._others.update(columns)
        if priorities is not None:
            self._priorities = priorities, steps_ago

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those in ``options["reset_mask"]``. This truncates running episodes."""
        mask = _flags((options or {}).get("reset_mask", np.ones(self.num_envs, bool)))
        is_running = mask & ~self._needs_reset & ~self._resets_next & ~self._is_lost
        if is_running.any():
            self._writer.end_episodes(is_running, self._recording.end(self._obs, self._infos))
        self._needs_reset |= mask  # also if the next line raises
        obs, infos = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]  # also a list
        self._obs, self._infos = self._recording.stored(obs), infos
        for flags in (self._needs_reset, self._resets_next, self._is_lost):
            flags &= ~mask
        return obs, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the environments and record their steps.

        Raises:
            ResetNeeded: an environment has no running episode. No environment was stepped.
            InvalidArgumentError: in ``SAME_STEP`` mode, the infos have no final observation. The current episodes are
                not recorded, as after the next error.
            ReplayError: steps could not be sent. The rest of the current episodes is not recorded, as after an error of
                an environment.
        """
        if self._needs_reset.any():
            raise ResetNeeded(f"environments {self._needs_reset.nonzero()[0].tolist()}: {_RESET_NEEDED}")
        given = _copied(actions)
        try:
            obs, rewards, terminated, truncated, infos = self.env.step(actions)
        except BaseException:  # some environments may have made the step
            self._others, self._priorities = {}, _NO_PRIORITY
            self._abandon(~self._is_lost)
            self._is_lost[:], self._resets_next[:] = True, False
            raise
        rows = self._recording.step(self._obs, given, rewards, self._others)
        is_terminated = _flags(terminated)
        is_recorded = ~self._resets_next & ~self._is_lost
        is_over = (is_terminated | _flags(truncated)) & ~self._resets_next
        self._others, self._infos = {}, infos
        given_priorities, self._priorities = self._priorities, _NO_PRIORITY
        self._is_lost &= ~is_over
        if self._mode is AutoresetMode.NEXT_STEP:
            self._resets_next = is_over
        elif self._mode is AutoresetMode.DISABLED:
            self._needs_reset = is_over
        before = self._obs
        try:
            self._obs = self._recording.stored(obs)
            self._record(rows, given_priorities, is_recorded, is_over & is_recorded, is_terminated)
        except BaseException:
            self._abandon(is_recorded)
            self._is_lost |= is_recorded & ~is_over
            if self._obs is before:  # the first observations of episodes that have just begun are not known, either
                self._is_lost |= ~is_over | (self._mode is AutoresetMode.SAME_STEP)
            raise
        return obs, rewards, terminated, truncated, infos

    def _abandon(self, which: NDArray[np.bool_]) -> None:
        for stream in which.nonzero()[0].tolist():
            self._writer[stream].abandon_episode()

    def _record(
        self,
        rows: dict[str, Any],
        given: tuple[ArrayLike | None, int],
        where: NDArray[np.bool_],
        done: NDArray[np.bool_],
        terminated: NDArray[np.bool_],
    ) -> None:
        """Append rows, and end the episodes in ``done``."""
        recording, infos, (priorities, steps_ago) = self._recording, self._infos, given
        ends = recording.end(self._obs, infos) if done.any() else {}
        if self._mode is not AutoresetMode.SAME_STEP:
            self._writer.append_all(rows, where=where, priorities=priorities, steps_ago=steps_ago)
            if done.any():
                self._writer.end_episodes(done, ends, terminated=terminated)
            return
        # The observations are those of the next episodes already.
        finals = {
            stream: {
                **_part(ends, stream),
                recording.obs: _part(recording.stored(_batch(_final_obs(infos, stream))), 0),
            }
            for stream in done.nonzero()[0].tolist()
        }
        self._writer.append_all(rows, where=where, priorities=priorities, steps_ago=steps_ago)
        for stream, final in finals.items():
            self._writer[stream].end_episode(final, terminated=bool(terminated[stream]))


@overload
def RecordSteps(
    envs: VectorEnv[Any, Any, Any],
    writer: Writer,
    *,
    obs: str = "obs",
    action: str | None = "action",
    reward: str | None = "reward",
    transform: Transform | None = None,
    final: FinalValues | None = None,
) -> RecordedVectorEnv: ...
@overload
def RecordSteps(
    envs: gymnasium.Env[Any, Any],
    writer: Writer | WriterStream,
    *,
    obs: str = "obs",
    action: str | None = "action",
    reward: str | None = "reward",
    transform: Transform | None = None,
    final: FinalValues | None = None,
) -> RecordedEnv: ...
def RecordSteps(  # noqa: N802 - used like Gymnasium's wrappers
    envs: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any],
    writer: Writer | WriterStream,
    *,
    obs: str = "obs",
    action: str | None = "action",
    reward: str | None = "reward",
    transform: Transform | None = None,
    final: FinalValues | None = None,
) -> RecordedEnv | RecordedVectorEnv:
    """Wrap an environment or a vector environment, so that its steps are recorded.

    Args:
        envs: an environment, or a vector environment.
        writer: a writer of a table of steps, with one stream per environment. For a single environment, it may also be
            one stream, ``writer[i]``.
        obs: the column of observations; nested ones are ``obs/name``.
        action: the column of actions; None: not stored.
        reward: the column of rewards; None: not stored.
        transform: returns what to store of an observation, such as ``lambda obs: obs[-1]``, the newest frame of a stack
            that the table stacks again. For a vector environment, it gets the observations of all environments:
            ``lambda obs: obs[:, -1]``. None: the whole observation.
        final: values of other columns in the rows that close episodes, such as ``{"value": 0.0}``; or a function that
            returns them for the ``info`` of the episode's last step. For a vector environment, values are
            ``[num_envs, *shape]``, and the function gets the infos of all environments, which in ``SAME_STEP`` mode
            have the last ones as ``final_info``. None: zeros.

    Returns:
        The wrapped environments: `RecordedEnv` or `RecordedVectorEnv`.

    Raises:
        InvalidArgumentError: the writer has another number of streams, its table is not a table of steps, the vector
            environment does not specify its autoreset mode, a wrapper steps an `Autoreset` several times in a step, or
            `transform` or `final` is of another kind.
    """
    recording = _Recording(obs, action, reward, transform, final)
    if transform is not None and not callable(transform):
        raise InvalidArgumentError.of_field("transform", "a function of an observation, or None", repr(transform))
    if not (final is None or callable(final) or (isinstance(final, Mapping) and obs not in final)):
        expected = f"a mapping without {obs!r}, a function that returns one, or None"
        raise InvalidArgumentError.of_field("final", expected, repr(final))
    if isinstance(writer, Writer) and writer.steps is None:
        raise InvalidArgumentError.of_field("writer", "a writer of a table with steps", repr(writer))
    if isinstance(envs, VectorEnv):
        if not isinstance(writer, Writer) or len(writer) != envs.num_envs:
            raise InvalidArgumentError.of_field("writer", f"a writer with {envs.num_envs} streams", repr(writer))
        return RecordedVectorEnv(envs, writer, recording)
    if isinstance(writer, Writer):
        if len(writer) != 1:
            raise InvalidArgumentError.of_field("writer", "one stream, such as writer[0]", f"{len(writer)} streams")
        writer = writer[0]
    return RecordedEnv(envs, writer, recording)


def _autoreset_of(env: gymnasium.Env[Any, Any]) -> Autoreset[Any, Any] | None:
    """Return the wrapper that resets an environment in a step after the end of an episode, if there is one.

    Raises:
        InvalidArgumentError: another wrapper would follow such a reset with steps of the new episode, in one step.
    """
    several: gymnasium.Env[Any, Any] | None = None
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, Autoreset):
            if several is not None:
                name = type(several).__name__
                expected = f"Autoreset around {name}, which takes several steps at once: Autoreset({name}(...))"
                raise InvalidArgumentError.of_field("envs", expected, f"{name}(Autoreset(...))")
            return env
        if _takes_several_steps(env):
            several = env
        env = env.env
    return None


def _takes_several_steps(env: gymnasium.Env[Any, Any]) -> bool:
    """Whether each step of a wrapper is several steps of the wrapped environment."""
    is_skipping = isinstance(env, AtariPreprocessing) and env.frame_skip > 1
    return is_skipping or isinstance(env, MaxAndSkipObservation) or getattr(env, "num_repeats", 1) > 1  # RepeatAction


def _copied(value: Any) -> Any:
    """Copy an observation or action: environments may reuse their arrays, and some wrappers change the caller's."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Mapping):
        return {name: _copied(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_copied(part) for part in value)
    return np.array(as_array(value)) if hasattr(value, "detach") else deepcopy(value)


def _flags(values: Any) -> NDArray[np.bool_]:
    """Copy flags of all environments, which may be a tensor."""
    return np.array(as_array(values), bool)


def _final_obs(infos: Any, stream: int) -> Any:
    """Return the final observation of an environment in ``SAME_STEP`` mode, in which ``obs`` is already the next one.

    Raises:
        InvalidArgumentError: the infos of Gymnasium, or the list made of these by `DictInfoToList`, do not have it.
    """
    try:
        if isinstance(infos, Mapping):
            return _part(infos["final_obs"], stream)
        return infos[stream]["final_obs"]
    except (KeyError, IndexError, TypeError):
        expected = f"the final observation of environment {stream}, because the autoreset mode is SAME_STEP"
        got = ", ".join(map(str, infos)) or "none" if isinstance(infos, Mapping) else type(infos).__name__
        raise InvalidArgumentError.of_field("infos.final_obs", expected, got) from None


def _batch(observation: Any) -> Any:
    """Return a (possibly nested) observation as those of one environment: ``[1, *shape]``."""
    if isinstance(observation, Mapping):
        return {name: _batch(part) for name, part in observation.items()}
    if isinstance(observation, tuple):
        return tuple(map(_batch, observation))
    return as_array(observation)[None]


def _part(observations: Any, index: int) -> Any:
    """Return the observation of one environment from the (possibly nested) observations of all."""
    if isinstance(observations, Mapping):
        return {name: _part(part, index) for name, part in observations.items()}
    if isinstance(observations, tuple):
        return tuple(_part(part, index) for part in observations)
    return observations[index]
