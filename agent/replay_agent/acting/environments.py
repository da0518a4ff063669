"""Creates Gymnasium environments, and checks that their spaces are supported."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import (
    AtariPreprocessing,
    FrameStackObservation,
    OrderEnforcing,
    PassiveEnvChecker,
    RecordEpisodeStatistics,
    TimeLimit,
)
from numpy.typing import NDArray
from replay_proto.steps import Padding

from replay_agent.atari_options import AtariOptions
from replay_agent.dqn.networks import IMAGE_RANK, Bounds

Environment = gymnasium.Env[Any, Any]
Environments = VectorEnv[Any, Any, Any]

ATARI_PREFIX = "ALE/"
ATARI_STACK = 4
ATARI_FRAMES = 108_000
"""Frames after which a game is truncated: half an hour at 60 frames per second."""
FIRE = "FIRE"

# The padding of a `Stack` that corresponds to each `padding_type` of `FrameStackObservation`.
_PADDINGS: Mapping[str, Padding] = {"reset": "repeat", "zero": "zero"}
# Wrappers that return the observations of the wrapped environment unchanged.
_TRANSPARENT = (gymnasium.RewardWrapper, OrderEnforcing, PassiveEnvChecker, RecordEpisodeStatistics, TimeLimit)


class UnsupportedEnvironmentError(ValueError):
    """The environment cannot be created, or DQN does not support its spaces."""


@dataclass(frozen=True)
class EnvironmentInfo:
    """The properties of an environment that the agent needs.

    Attributes:
        env_id: its Gymnasium id.
        observation_shape: shape of one observation.
        observation_dtype: NumPy name of the observation's dtype.
        bounds: bounds of the observation's elements.
        actions: number of actions, numbered from 0.
        first_action: the number that the environment uses for action 0.
        stack: frames in an observation, oldest first, if a `FrameStackObservation` stacks them; otherwise 1.
        padding: how the stack is filled up at the beginning of an episode.
    """

    env_id: str
    observation_shape: tuple[int, ...]
    observation_dtype: str
    bounds: Bounds
    actions: int
    first_action: int
    stack: int = 1
    padding: Padding = "zero"

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """Shape of one frame of a stack; if frames are not stacked, the shape of an observation."""
        return self.observation_shape if self.stack == 1 else self.observation_shape[1:]


def make_environments(env_id: str, count: int, atari: AtariOptions | None = None) -> Environments:
    """Create a vector environment of ``count`` environments, in the autoreset mode ``SAME_STEP``.

    Atari games run in threads of their emulator, as many as torch has CPU threads, with the same observations as those
    of `make_environment`. Other environments run one after the other. The other arguments and the errors are those of
    `make_environment`.
    """
    if not env_id.startswith(ATARI_PREFIX):
        makers = [lambda: _NewObservations(make_environment(env_id))] * count
        return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    options = atari or AtariOptions()
    make_environment(env_id, options).close()  # explains what is missing
    return gymnasium.make_vec(
        env_id,
        count,
        autoreset_mode=AutoresetMode.SAME_STEP,
        num_threads=torch.get_num_threads(),
        max_num_frames_per_episode=ATARI_FRAMES,
        repeat_action_probability=options.sticky_actions,
        noop_max=options.noop_max,
        episodic_life=options.episodic_life,
        reward_clipping=False,
        stack_num=ATARI_STACK,
    )


def make_environment(env_id: str, atari: AtariOptions | None = None, render_mode: str | None = None) -> Environment:
    """Create an environment. Atari games, whose ids begin with ``ALE/``, get their usual preprocessing.

    Args:
        env_id: id for `gymnasium.make`, or ``module:function`` for a function that makes an environment.
        atari: how Atari games are played; None: the defaults.
        render_mode: passed to either of them, unless it is None.

    Raises:
        UnsupportedEnvironmentError: Gymnasium does not know the environment, a dependency is missing, or the function
            fails.
    """
    module, _, name = env_id.partition(":")
    options: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
    try:
        make = getattr(import_module(module), name, None) if name else None
        if make is not None:
            return _made_by(make, env_id, options)
        if env_id.startswith(ATARI_PREFIX):
            return _make_atari(env_id, atari or AtariOptions(), options)
        return gymnasium.make(env_id, **options)
    except (gymnasium.error.Error, ImportError) as error:
        raise UnsupportedEnvironmentError(
            f"Gymnasium could not make the environment {env_id!r}: {error}. Check --env, and install the package that "
            "registers it (as module:EnvId, if it must be imported first), for Atari games 'replay-service[atari]'."
        ) from error


def _made_by(make: Any, env_id: str, options: Mapping[str, Any]) -> Environment:
    try:
        env = make(**options)
    except Exception as error:
        raise UnsupportedEnvironmentError(
            f"the environment {env_id} failed: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(env, gymnasium.Env):
        raise UnsupportedEnvironmentError(f"expected a gymnasium.Env from {env_id}, got {type(env).__name__}")
    return env


class _NewObservations(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Returns each observation in a new array: an environment may overwrite a final one when it is reset."""

    def observation(self, observation: Any) -> Any:
        return np.array(observation)


class _FireOnReset(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Presses FIRE for a frame when a game begins: some games wait for it, and a greedy policy may never press it."""

    def __init__(self, env: Environment, fire: int) -> None:
        super().__init__(env)
        self._fire = fire

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        self.env.reset(**options)
        obs, _, terminated, truncated, info = self.env.step(self._fire)
        return self.env.reset() if terminated or truncated else (obs, info)


def _make_atari(env_id: str, atari: AtariOptions, options: Mapping[str, Any]) -> Environment:
    """Make a game as in Mnih et al. (2015): gray 84x84 frames, four emulator steps per action, stacks of four."""
    gymnasium.register_envs(import_module("ale_py"))
    sticky = atari.sticky_actions
    game: Environment = gymnasium.make(
        env_id, frameskip=1, max_num_frames_per_episode=ATARI_FRAMES, repeat_action_probability=sticky, **options
    )
    meanings: list[str] = game.get_wrapper_attr("get_action_meanings")()
    if FIRE in meanings:
        game = _FireOnReset(game, meanings.index(FIRE))
    frames = AtariPreprocessing(game, noop_max=atari.noop_max, terminal_on_life_loss=atari.episodic_life)
    return FrameStackObservation(frames, ATARI_STACK, padding_type="zero")


def describe_environment(env: Environment, env_id: str) -> EnvironmentInfo:
    """Check the spaces and describe them.

    Raises:
        UnsupportedEnvironmentError: the action space is not Discrete, or the observation space is not a Box with at
            most 3 axes.
    """
    observation_space, action_space = checked_spaces(env.observation_space, env.action_space, env_id)
    stacking = _frame_stack(env)
    return EnvironmentInfo(
        env_id=env_id,
        observation_shape=tuple(observation_space.shape),
        observation_dtype=np.dtype(observation_space.dtype).name,
        bounds=Bounds(_flat(observation_space.low), _flat(observation_space.high)),
        actions=int(action_space.n),
        first_action=int(action_space.start),
        stack=1 if stacking is None else stacking.stack_size,
        padding="zero" if stacking is None else _PADDINGS[stacking.padding_type],
    )


def checked_spaces(observation_space: Any, action_space: Any, env_id: str) -> tuple[spaces.Box, spaces.Discrete]:
    """Return the spaces of an environment, after a check that raises the errors of `describe_environment`."""
    if not isinstance(action_space, spaces.Discrete):
        raise UnsupportedEnvironmentError(
            f"DQN needs a Discrete action space; {env_id} has {action_space}. Choose another --env."
        )
    if not isinstance(observation_space, spaces.Box) or len(observation_space.shape) > IMAGE_RANK:
        raise UnsupportedEnvironmentError(
            f"the agent needs a Box observation space of at most {IMAGE_RANK} axes; {env_id} has {observation_space}. "
            "Wrap the environment (flatten or stack its observations) or choose another --env."
        )
    return observation_space, action_space


def _frame_stack(env: Environment) -> FrameStackObservation | None:
    """Find the wrapper that stacks frames; None if there is none, or if its stacks cannot be rebuilt from frames."""
    while isinstance(env, _TRANSPARENT):
        env = env.env
    if isinstance(env, FrameStackObservation) and env.stack_size > 1 and env.padding_type in _PADDINGS:
        return env
    return None


def _flat(bound: NDArray[Any]) -> tuple[float, ...]:
    return tuple(bound.astype(np.float64).ravel().tolist())


def inspect_environment(env_id: str) -> EnvironmentInfo:
    """Describe an environment by its id."""
    with closing(make_environment(env_id)) as env:
        return describe_environment(env, env_id)
