"""Hindsight experience replay for Stable-Baselines3, from a table of sequences on a server.

    SAC("MultiInputPolicy", env, replay_buffer_class=ServiceHerReplayBuffer,
        replay_buffer_kwargs={"address": "localhost:50051", "table": "reach", "n_sampled_goal": 4})

Each drawn sequence begins with the step to learn from, and has the rest of its episode. The client chooses goals from
it, and computes the rewards for them.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from replay_proto.schema import SEPARATOR, Column
from replay_proto.steps import Derived, Discount, Item, Mask, Sequences
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from stable_baselines3.her.goal_selection_strategy import KEY_TO_GOAL_STRATEGY, GoalSelectionStrategy
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from replay_client.batch import Batch
from replay_client.draws import checked_count
from replay_client.errors import InvalidArgumentError
from replay_client.sb3.buffer import OBS, ServiceReplayBuffer, ServiceSamples, next_column
from replay_client.sequences import GOAL_STRATEGIES, GoalStrategy, hindsight_goals

ACHIEVED: Final = f"{OBS}{SEPARATOR}achieved_goal"
DESIRED: Final = f"{OBS}{SEPARATOR}desired_goal"
INFO_BYTES: Final = 512
"""Default size of a step's info as JSON."""
_FINAL_OBS: Final = "terminal_observation"
"""What SB3 adds to the last info of an episode. It is the final observation, which the table has."""
_GOALS: Final = ("observation", "achieved_goal", "desired_goal")
"""Parts that the observations of a goal environment must have."""


class ServiceHerReplayBuffer(ServiceReplayBuffer, HerReplayBuffer):
    """SB3's `HerReplayBuffer` with its steps in a table on a server; see `ServiceReplayBuffer`.

    As in SB3, the steps of an episode can be drawn when it has ended. A saved buffer truncates the running episodes, so
    `load_replay_buffer` begins with new ones whatever its ``truncate_last_traj``.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        env: VecEnv,
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        n_sampled_goal: int = 4,
        goal_selection_strategy: GoalSelectionStrategy | str = "future",
        copy_info_dict: bool = False,
        *,
        max_episode_steps: int | None = None,
        info_bytes: int = INFO_BYTES,
        **options: Any,
    ) -> None:
        """Called by SB3; ``replay_buffer_kwargs`` has the arguments from ``n_sampled_goal`` on.

        Args:
            buffer_size: as for `ServiceReplayBuffer`.
            observation_space: a Dict space with ``observation``, ``achieved_goal`` and ``desired_goal``.
            action_space: as for `ServiceReplayBuffer`.
            env: the algorithm's environment, which computes rewards.
            device: as for `ServiceReplayBuffer`.
            n_envs: as for `ServiceReplayBuffer`.
            optimize_memory_usage: as for `ServiceReplayBuffer`.
            handle_timeout_termination: as for `ServiceReplayBuffer`.
            n_sampled_goal: number of drawn steps with a goal chosen in hindsight, for each step with its own goal.
            goal_selection_strategy: ``"future"``, ``"final"`` or ``"episode"``; see `hindsight_goals`.
            copy_info_dict: whether to store infos as JSON, and to pass them to the environment's ``compute_reward``.
                Arrays in them become lists. The ``terminal_observation`` is left out.
            max_episode_steps: steps of the longest episode. None: the time limit in the environment's ``spec``.
            info_bytes: largest size of an info as JSON, in bytes.
            **options: keyword arguments of `ServiceReplayBuffer`. The default of ``backend`` is ``"uniform"``, as in
                SB3. ``n_steps`` must be 1.

        Raises:
            InvalidArgumentError: an argument is out of range, or the observations are not those of a goal environment.
        """
        self.env = env
        self.n_sampled_goal = checked_count("n_sampled_goal", n_sampled_goal)
        self.her_ratio = 1 - 1 / (self.n_sampled_goal + 1)
        self._strategy = _strategy(goal_selection_strategy)
        self.goal_selection_strategy = KEY_TO_GOAL_STRATEGY[self._strategy]
        self.copy_info_dict = copy_info_dict
        self._info = Column("uint8", checked_count("info_bytes", info_bytes))
        self._max_episode_steps = checked_count("max_episode_steps", _time_limit(env, max_episode_steps))
        parts = observation_space.spaces if isinstance(observation_space, spaces.Dict) else {}
        if missing := [part for part in _GOALS if part not in parts]:
            expected = f"a Dict space with {', '.join(_GOALS)}"
            raise InvalidArgumentError.of_field("observation_space", expected, f"none of {', '.join(missing)}")
        if options.get("n_steps", 1) != 1:
            raise InvalidArgumentError.of_field("n_steps", "1, with goals in hindsight", repr(options["n_steps"]))
        super().__init__(
            buffer_size,
            observation_space,
            action_space,
            device,
            n_envs,
            optimize_memory_usage,
            handle_timeout_termination,
            **{"backend": "uniform", **options},
        )
        self._episode_steps = np.zeros(self.n_envs, np.int64)
        self._rng = np.random.default_rng(np.random.randint(1 << 31))  # follows the algorithm's seed, as in SB3

    def add(
        self,
        obs: Any,
        next_obs: Any,
        action: NDArray[Any],
        reward: NDArray[Any],
        done: NDArray[Any],
        infos: list[dict[str, Any]] | Mapping[str, Any],
    ) -> None:
        """Add one step of each environment; see `ServiceReplayBuffer.add`.

        Raises:
            InvalidArgumentError: an episode is longer than `max_episode_steps`, or an info does not fit. Nothing was
                added.
        """
        super().add(obs, next_obs, action, reward, done, infos)
        self._episode_steps[self._going_on] += 1

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> ServiceSamples:  # type: ignore[override]
        """Draw steps. Most of them have a goal chosen in hindsight, and the reward for it.

        Args:
            batch_size: number of steps.
            env: as for `ServiceReplayBuffer.sample`.

        Returns:
            Samples on the device; first those with a goal chosen in hindsight.

        Raises:
            InvalidArgumentError: the environment's ``compute_reward`` returned rewards of another shape.
            ReplayError: as for `ServiceReplayBuffer.sample`.
        """
        batch = self._drawn(batch_size)
        return self._samples(self._relabeled(batch), batch, env)

    def truncate_last_trajectory(self) -> None:
        """Truncate the running episodes, so that their steps can be drawn."""
        if self._going_on.any():
            warnings.warn("the running episodes are truncated", stacklevel=2)
            self._end(self._going_on)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that `save_replay_buffer` saves: without rows, and without the environment, as in SB3."""
        state = super().__getstate__()
        del state["env"]
        return state

    def _layout(self, columns: Mapping[str, Column], gamma: float) -> tuple[dict[str, Column | Derived], Item]:
        # A position more than an episode has steps, for the final observation.
        item = Sequences(length=self._max_episode_steps + 1, burn_in=self._anchor, gamma=gamma)
        infos = {"info": self._info} if self.copy_info_dict else {}
        return {**columns, "reward": Column("float32"), **infos, "discount": Discount(), "mask": Mask()}, item

    @property
    def _anchor(self) -> int:
        """Position of the step to learn from. Only one strategy needs the steps before it."""
        return self._max_episode_steps if self._strategy == "episode" else 0

    def _more_columns(self, infos: Any) -> dict[str, NDArray[Any]]:
        if not self.copy_info_dict:
            return {}
        if isinstance(infos, Mapping):
            raise InvalidArgumentError.of_field("infos", "a list with a mapping for each environment", "a mapping")
        size = self._info.shape[0]
        return {"info": np.stack([_packed(f"infos[{number}]", info, size) for number, info in enumerate(infos)])}

    def _check_lengths(self) -> None:
        if (self._going_on & (self._episode_steps >= self._max_episode_steps)).any():
            expected = "the steps of the longest episode"
            raise InvalidArgumentError.of_field("max_episode_steps", expected, f"{self._max_episode_steps}")

    def _abandon(self) -> None:
        self._episode_steps[:] = 0
        super()._abandon()

    def _end(self, which: NDArray[np.bool_], terminated: NDArray[np.bool_] | None = None) -> None:
        self._episode_steps[which] = 0
        super()._end(which, terminated)

    def _relabeled(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """Return the transitions of drawn sequences, ``[batch, *shape]`` by column; the first have another goal."""
        anchor = self._anchor
        columns = {name: batch[name][:, anchor].copy() for name in (*self._observed, "action", "reward", "discount")}
        following = {next_column(name): batch[name][:, anchor + 1].copy() for name in self._observed}
        virtual = slice(int(self.her_ratio * len(batch.row_keys)))
        goals = hindsight_goals(
            batch[ACHIEVED][virtual], batch["mask"][virtual], self._rng, strategy=self._strategy, burn_in=anchor
        )
        columns[DESIRED][virtual] = following[next_column(DESIRED)][virtual] = goals
        columns["reward"][virtual] = self._rewards_of(following[next_column(ACHIEVED)][virtual], goals, batch)
        return {**columns, **following}

    def _rewards_of(self, achieved: NDArray[Any], goals: NDArray[Any], batch: Batch) -> NDArray[Any]:
        """Compute the rewards of the first steps of a batch for other goals, float[n]."""
        if self.env is None:
            raise InvalidArgumentError.of_field("env", "an environment, which computes rewards; call set_env", "None")
        infos: list[Any] = [{}] * len(goals)
        if self.copy_info_dict:
            infos = [json.loads(packed.tobytes()) for packed in batch["info"][: len(goals), self._anchor]]
        (rewards,) = self.env.env_method("compute_reward", achieved, goals, infos, indices=[0])
        if np.shape(rewards) != (len(goals),):
            expected = f"one reward for each of {len(goals)} goals"
            raise InvalidArgumentError.of_field("compute_reward", expected, f"the shape {list(np.shape(rewards))}")
        return np.asarray(rewards)


def _strategy(given: GoalSelectionStrategy | str) -> GoalStrategy:
    name = given.name if isinstance(given, GoalSelectionStrategy) else str(given)
    for strategy in GOAL_STRATEGIES:
        if strategy == name.lower():
            return strategy
    expected = " or ".join(map(repr, GOAL_STRATEGIES))
    raise InvalidArgumentError.of_field("goal_selection_strategy", expected, repr(given))


def _time_limit(env: VecEnv, given: int | None) -> Any:
    """Return the given limit of steps, or the one of the environment; it may be None."""
    if given is not None:
        return given
    spec = env.get_attr("spec", indices=[0])[0]
    return None if spec is None else spec.max_episode_steps


def _packed(argument: str, info: Any, size: int) -> NDArray[np.uint8]:
    """Return an info, without the final observation, as JSON, uint8[size], with spaces at its end.

    Raises:
        InvalidArgumentError: it is larger, or has a value that JSON cannot hold.
    """
    try:
        packed = json.dumps({name: info[name] for name in info if name != _FINAL_OBS}, default=_plain).encode()
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError.of_field(argument, "values that JSON can hold", str(error)) from None
    if len(packed) > size:
        expected = f"at most {size} bytes of JSON; raise info_bytes"
        raise InvalidArgumentError.of_field(argument, expected, f"{len(packed)}")
    return np.frombuffer(packed.ljust(size), np.uint8)


def _plain(value: Any) -> Any:
    """Convert NumPy's values for JSON."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__}")
