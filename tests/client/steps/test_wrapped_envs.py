"""Gymnasium's own wrappers around and inside `RecordSteps`: no step is left out, and none is made up."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces, wrappers
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector
from replay_client import Column, InvalidArgumentError, Next, Table, Transitions
from replay_client.gymnasium import RecordSteps
from replay_client.spaces import columns_from_space
from replay_proto.v1 import replay_pb2

NewTable = Callable[..., Table]
Episode = tuple[list[float], bool]
"""The rewards of an episode, and whether it was terminated; without the one that goes on."""

FLAT = {"obs": Column("uint8", (8, 8, 3)), "action": Column("float32"), "reward": Column("float32")}


class Pictures(gymnasium.Env[Any, Any]):
    """Episodes of 3 steps with pictures as observations, which end in a terminal state every other time."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012
    render_mode = "rgb_array"
    observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)
    action_space = spaces.Box(-1, 1, (), np.float32)

    def __init__(self) -> None:
        self.episodes: list[Episode] = []
        self._rewards: list[float] = []
        self._next = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._rewards = []
        return self._picture(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._rewards.append(self._next % 7 + 1.0)
        is_over, is_even = len(self._rewards) == 3, len(self.episodes) % 2 == 0
        if is_over:
            self.episodes.append((self._rewards, is_even))
        return self._picture(), self._rewards[-1], is_over and is_even, is_over and not is_even, {}

    def render(self) -> Any:
        return np.full((8, 8, 3), self._next, np.uint8)

    def _picture(self) -> Any:
        self._next += 1
        return np.full((8, 8, 3), self._next, np.uint8)


def doubled(obs: Any) -> Any:
    return 2 * obs


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "DelayObservation": lambda env: wrappers.DelayObservation(env, 2),
    "DtypeObservation": lambda env: wrappers.DtypeObservation(env, np.float32),
    "FilterObservation": lambda env: wrappers.FilterObservation(wrappers.AddRenderObservation(env, False), ["pixels"]),
    "FlattenObservation": wrappers.FlattenObservation,
    "FrameStackObservation": lambda env: wrappers.FrameStackObservation(env, 2),
    "GrayscaleObservation": wrappers.GrayscaleObservation,
    "TransformObservation": lambda env: wrappers.TransformObservation(env, doubled, env.observation_space),
    "NormalizeObservation": wrappers.NormalizeObservation,
    "AddRenderObservation": lambda env: wrappers.AddRenderObservation(env, False),
    "ReshapeObservation": lambda env: wrappers.ReshapeObservation(env, (64, 3)),
    "RescaleObservation": lambda env: wrappers.RescaleObservation(env, np.uint8(0), np.uint8(1)),
    "TimeAwareObservation": lambda env: wrappers.TimeAwareObservation(wrappers.TimeLimit(env, 9), flatten=False),
    "ClipAction": wrappers.ClipAction,
    "TransformAction": lambda env: wrappers.TransformAction(env, doubled, env.action_space),
    "RescaleAction": lambda env: wrappers.RescaleAction(env, np.float32(0), np.float32(1)),
    "StickyAction": lambda env: wrappers.StickyAction(env, 0.5),
    "ClipReward": lambda env: wrappers.ClipReward(env, 0, 100),
    "TransformReward": lambda env: wrappers.TransformReward(env, float),
    "TimeLimit": lambda env: wrappers.TimeLimit(env, 3),
    "Autoreset": wrappers.Autoreset,
    "PassiveEnvChecker": wrappers.PassiveEnvChecker,
    "OrderEnforcing": wrappers.OrderEnforcing,
    "RecordEpisodeStatistics": wrappers.RecordEpisodeStatistics,
    "RenderCollection": wrappers.RenderCollection,
    "all at once": lambda env: wrappers.FrameStackObservation(
        wrappers.OrderEnforcing(wrappers.Autoreset(wrappers.PassiveEnvChecker(env))), 2
    ),
}


def table_of(new_table: NewTable, env: Any) -> Table:
    """A table of steps for the spaces of an environment, or of each environment of a vector environment."""
    space = getattr(env, "single_observation_space", env.observation_space)
    columns = columns_from_space(space, "obs") | {"action": Column("float32"), "reward": Column("float32")}
    observed = [name for name in columns if name.startswith("obs")]
    derived = {f"next_{name}": Next(name) for name in observed}
    return new_table(columns=columns | derived, steps=Transitions(1), backend="uniform")


def finished(table: Table) -> list[Episode]:
    """The finished episodes in a table, in order of their streams."""
    rows = next(iter(table.rows(order="episode")))
    assert rows.ends is not None
    ends = np.flatnonzero(rows.ends)
    parts = np.split(rows["reward"], ends + 1)[:-1]
    return [
        (part[:-1].tolist(), int(rows.ends[end]) == replay_pb2.EPISODE_END_TERMINATED)
        for part, end in zip(parts, ends, strict=True)
    ]


def run(env: Any, steps: int, *, resets: bool) -> None:
    """Step an environment, and reset it after each episode if nothing else does."""
    env.reset(seed=0)
    for _ in range(steps):
        _, _, terminated, truncated, _ = env.step(np.float32(0.25))
        if resets and (terminated or truncated):
            env.reset()


@pytest.mark.filterwarnings("ignore")  # of Gymnasium, about this environment
@pytest.mark.parametrize("is_inside", [True, False], ids=["inside", "around"])
@pytest.mark.parametrize("name", WRAPPERS)
def test_every_step_is_recorded_with_a_wrapper(new_table: NewTable, name: str, *, is_inside: bool) -> None:
    env = Pictures()
    inner = WRAPPERS[name](env) if is_inside else env
    table = table_of(new_table, inner)
    resets = name not in ("Autoreset", "all at once")
    with table.writer() as writer:
        recorded = RecordSteps(inner, writer)
        run(recorded if is_inside else WRAPPERS[name](recorded), 24, resets=resets)
    assert sum(len(rewards) for rewards, _ in finished(table)) == (24 if resets else 18)
    assert finished(table) == env.episodes


@pytest.mark.parametrize(
    "several", [partial(wrappers.MaxAndSkipObservation, skip=2), partial(wrappers.RepeatAction, num_repeats=2)]
)
def test_a_wrapper_that_takes_several_steps_goes_inside_autoreset(
    new_table: NewTable, several: Callable[[Any], Any]
) -> None:
    env = Pictures()
    table = table_of(new_table, env)
    with table.writer() as writer:
        with pytest.raises(InvalidArgumentError, match=r"envs: expected Autoreset around .*, got .*\(Autoreset"):
            RecordSteps(several(wrappers.Autoreset(env)), writer)
        run(RecordSteps(wrappers.Autoreset(several(env)), writer), 24, resets=False)
    rewards = [([first + second, third], is_terminated) for (first, second, third), is_terminated in env.episodes]
    assert finished(table) == rewards
    assert len(rewards) == 8


def test_a_step_of_no_episode_is_refused_before_it_is_made(new_table: NewTable) -> None:
    env = Pictures()
    with table_of(new_table, env).writer(streams=2) as writer:
        recorded = RecordSteps(env, writer[0])
        with pytest.raises(ResetNeeded, match=r"call reset\(\) first"):
            recorded.step(0.0)
        run(recorded, 3, resets=False)
        with pytest.raises(ResetNeeded, match="Autoreset"):
            recorded.step(0.0)
        assert len(env.episodes) == 1


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_step_of_no_episode_of_a_vector_environment_is_refused(new_table: NewTable, mode: AutoresetMode) -> None:
    envs = SyncVectorEnv([Pictures, Pictures], autoreset_mode=mode)
    actions = np.zeros(2, np.float32)
    with table_of(new_table, envs).writer(streams=2) as writer:
        recorded = RecordSteps(envs, writer)
        with pytest.raises(ResetNeeded, match=r"environments \[0, 1\]"):
            recorded.step(actions)
        recorded.reset()
        for _ in range(3):
            recorded.step(actions)
        if mode is AutoresetMode.DISABLED:
            recorded.reset(options={"reset_mask": np.array([True, False])})
            with pytest.raises(ResetNeeded, match=r"environments \[1\]"):
                recorded.step(actions)
        else:
            recorded.step(actions)


VECTOR_WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "DictInfoToList": vector.DictInfoToList,
    "RecordEpisodeStatistics": vector.RecordEpisodeStatistics,
    "FlattenObservation": vector.FlattenObservation,
    "GrayscaleObservation": vector.GrayscaleObservation,
    "ReshapeObservation": lambda envs: vector.ReshapeObservation(envs, (64, 3)),
    "DtypeObservation": lambda envs: vector.DtypeObservation(envs, np.float32),
    "VectorizeTransformObservation": lambda envs: vector.VectorizeTransformObservation(
        envs, wrappers.TransformObservation, func=doubled, observation_space=Pictures.observation_space
    ),
    "ClipAction": vector.ClipAction,
    "ClipReward": lambda envs: vector.ClipReward(envs, 0, 100),
    "TransformReward": lambda envs: vector.TransformReward(envs, doubled),
    "VectorizeTransformReward": lambda envs: vector.VectorizeTransformReward(
        envs, wrappers.TransformReward, func=lambda reward: reward
    ),
}


@pytest.mark.filterwarnings("ignore")  # of Gymnasium, about this environment
@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("is_inside", [True, False], ids=["inside", "around"])
def test_every_step_is_recorded_with_wrappers_of_vector_environments(
    new_table: NewTable, mode: AutoresetMode, *, is_inside: bool
) -> None:
    for name, wrapped in VECTOR_WRAPPERS.items():
        if mode is AutoresetMode.SAME_STEP and name.endswith("Observation"):
            continue  # Gymnasium itself refuses this
        envs = SyncVectorEnv([Pictures] * 3, autoreset_mode=mode)
        inner = wrapped(envs) if is_inside else envs
        table = table_of(new_table, inner)
        with table.writer(streams=3) as writer:
            recorded = RecordSteps(inner, writer)
            outer = recorded if is_inside else wrapped(recorded)
            outer.reset()
            for _ in range(10):
                _, _, terminated, truncated, _ = outer.step(np.zeros(3, np.float32))
                if mode is AutoresetMode.DISABLED and (terminated | truncated).any():
                    outer.reset(options={"reset_mask": terminated | truncated})
        times = 2 if is_inside and name == "TransformReward" else 1
        made: Any = chain.from_iterable(env.unwrapped.episodes for env in envs.envs)  # type: ignore[attr-defined]
        expected = [([times * each for each in rewards], is_terminated) for rewards, is_terminated in made]
        assert sorted(finished(table)) == sorted(expected), name


def test_final_observations_are_found_in_a_list_of_infos(new_table: NewTable) -> None:
    envs = vector.DictInfoToList(SyncVectorEnv([Pictures], autoreset_mode=AutoresetMode.SAME_STEP))
    table = table_of(new_table, envs)
    with table.writer(streams=1) as writer:
        recorded = RecordSteps(envs, writer)
        recorded.reset()
        for _ in range(3):
            recorded.step(np.zeros(1, np.float32))
    assert table.read(np.arange(4))["obs"][:, 0, 0, 0].tolist() == [1, 2, 3, 4]


def test_infos_without_final_observations_are_refused_by_name(new_table: NewTable) -> None:
    class Silent(gymnasium.vector.VectorWrapper):
        def step(self, actions: Any) -> Any:
            return (*self.env.step(actions)[:4], {})

    envs = Silent(SyncVectorEnv([Pictures], autoreset_mode=AutoresetMode.SAME_STEP))
    table = table_of(new_table, envs)
    with table.writer(streams=1) as writer:
        recorded = RecordSteps(envs, writer)
        recorded.reset()
        for _ in range(2):
            recorded.step(np.zeros(1, np.float32))
        with pytest.raises(InvalidArgumentError, match=r"infos\.final_obs: expected the final .*SAME_STEP, got none"):
            recorded.step(np.zeros(1, np.float32))


@pytest.mark.parametrize("is_vector", [False, True])
def test_tensors_of_torch_are_recorded(new_table: NewTable, *, is_vector: bool) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("array_api_compat", reason="Gymnasium's conversion of arrays needs array-api-compat")
    env = Pictures()
    envs: Any = SyncVectorEnv([lambda: env]) if is_vector else env
    table = table_of(new_table, envs)
    with table.writer(streams=1) as writer:
        if is_vector:
            recorded: Any = RecordSteps(vector.NumpyToTorch(envs), writer)
        else:
            recorded = RecordSteps(wrappers.Autoreset(wrappers.NumpyToTorch(envs)), writer)
        recorded.reset()
        for _ in range(24):
            recorded.step(torch.zeros(1) if is_vector else torch.zeros(()))
    assert finished(table) == env.episodes
    assert len(env.episodes) == 6
