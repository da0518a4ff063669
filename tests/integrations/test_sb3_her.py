"""Hindsight experience replay for Stable-Baselines3, compared with the library's own buffer."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from replay_client import InvalidArgumentError, ReplayClient

pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")

from replay_client.sb3 import ServiceHerReplayBuffer, ServiceReplayBuffer
from stable_baselines3 import DQN, HerReplayBuffer
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import DummyVecEnv

from tests.support.server_process import ServerProcess

NewBuffer = Callable[..., ServiceHerReplayBuffer]
STRATEGIES = ["future", "final", "episode"]
MOST_STEPS = 6
BATCH, BATCHES = 2_000, 20
"""Samples among a few hundred pairs of steps and goals: each is drawn many times."""


class Count(gymnasium.Env[Any, Any]):
    """Each observation of each episode is another number; the reward says how far the achieved goal is from the other.

    An episode has a random number of steps, and is terminated or truncated at random.
    """

    observation_space = spaces.Dict(
        {name: spaces.Box(-np.inf, np.inf, (1,)) for name in ("observation", "achieved_goal", "desired_goal")}
    )
    action_space = spaces.Discrete(3)

    def __init__(self) -> None:
        self._number = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._number += 100
        self._goal = -float(self._number)
        self._left = int(self.np_random.integers(1, MOST_STEPS + 1))
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._number += 1
        self._left -= 1
        ends = self._left == 0
        is_terminal = ends and bool(self.np_random.random() < 0.5)
        seen = self._seen()
        reward = float(self.compute_reward(seen["achieved_goal"], seen["desired_goal"], {}))
        return seen, reward, is_terminal, ends and not is_terminal, {"number": np.float32(self._number)}

    def compute_reward(self, achieved: Any, desired: Any, infos: Any) -> Any:
        """The distance; infos add their number."""
        numbers = 0 if isinstance(infos, dict) else [info.get("number", 0) for info in infos]
        return np.abs(achieved - desired)[..., 0] + numbers

    def _seen(self) -> Any:
        number = float(self._number)
        values = {"observation": number, "achieved_goal": 1000 + number, "desired_goal": self._goal}
        return {name: np.array([value], np.float32) for name, value in values.items()}


@pytest.fixture
def in_table(server: ServerProcess) -> Iterator[dict[str, Any]]:
    """The ``replay_buffer_kwargs`` of a table."""
    name = f"her-{uuid.uuid4().hex}"
    with ReplayClient(server.address) as client:
        yield {"address": client, "table": name}
        if name in client:
            client.drop_table(name)


@pytest.fixture
def new_buffer(in_table: dict[str, Any]) -> Iterator[NewBuffer]:
    made = []

    def create(env: Any, **options: Any) -> ServiceHerReplayBuffer:
        given = {"max_lag_steps": 0, "max_episode_steps": MOST_STEPS, "device": "cpu", **in_table, **options}
        made.append(ServiceHerReplayBuffer(1000, env.observation_space, env.action_space, env, **given))
        return made[-1]

    yield create
    for buffer in made:
        buffer.close()


def fill(env: Any, count: int, *buffers: Any) -> None:
    """Add steps of an environment to all buffers, until all its episodes have ended."""
    env.seed(3)
    obs = env.reset()
    done = np.zeros(env.num_envs, bool)
    for step in range(count):
        actions = np.array([(step + number) % 3 for number in range(env.num_envs)])
        seen, rewards, done, infos = env.step(actions)
        after = {key: value.copy() for key, value in seen.items()}
        for number in done.nonzero()[0]:
            for key in after:
                after[key][number] = infos[number]["terminal_observation"][key]
        for buffer in buffers:
            buffer.add(obs, after, actions, rewards, done, infos)
        obs = seen


def transitions(samples: Any) -> set[tuple[float, ...]]:
    """The different transitions among samples."""
    obs, after = samples.observations, samples.next_observations
    columns = [each[key] for each in (obs, after) for key in ("observation", "achieved_goal", "desired_goal")]
    columns += [samples.actions, samples.rewards, samples.dones]
    return set(zip(*(column.flatten().tolist() for column in columns), strict=True))


def observed(samples: Any, key: str) -> torch.Tensor:
    """A part of the observations of samples, flat."""
    part: torch.Tensor = samples.observations[key]
    return part.flatten()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("copy_info_dict", [False, True])
def test_samples_are_those_of_the_buffer_of_sb3(
    new_buffer: NewBuffer, strategy: str, n_envs: int, *, copy_info_dict: bool
) -> None:
    env = DummyVecEnv([Count] * n_envs)
    options: dict[str, Any] = {"n_envs": n_envs, "goal_selection_strategy": strategy, "copy_info_dict": copy_info_dict}
    theirs = HerReplayBuffer(1000, env.observation_space, env.action_space, env, "cpu", **options)  # type: ignore[arg-type]
    ours = new_buffer(env, **options)
    fill(env, 40, theirs, ours)
    theirs.truncate_last_trajectory()
    ours.truncate_last_trajectory()
    mine, others = (set().union(*(transitions(each.sample(BATCH)) for _ in range(BATCHES))) for each in (ours, theirs))
    assert mine == others


@pytest.mark.parametrize("n_sampled_goal", [1, 4])
def test_the_share_of_goals_in_hindsight_is_that_of_sb3(new_buffer: NewBuffer, n_sampled_goal: int) -> None:
    env = DummyVecEnv([Count])
    buffer = new_buffer(env, n_sampled_goal=n_sampled_goal)
    fill(env, 30, buffer)
    desired = observed(buffer.sample(100), "desired_goal")
    assert int((desired > 0).sum()) == 100 * n_sampled_goal // (n_sampled_goal + 1)  # its own are negative


def test_priorities_can_be_updated(new_buffer: NewBuffer) -> None:
    env = DummyVecEnv([Count])
    buffer = new_buffer(env, backend="sum_tree", alpha=1.0, epsilon=1e-9)
    fill(env, 30, buffer)
    samples = buffer.sample(1000)
    numbers = observed(samples, "observation")
    buffer.update_priorities(samples, (numbers == numbers.min()).float())
    buffer.sample(1)
    assert set(observed(buffer.sample(50), "observation").tolist()) == {float(numbers.min())}


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("n_sampled_goal", {"n_sampled_goal": 0}),
    ("goal_selection_strategy", {"goal_selection_strategy": "past"}),
    ("max_episode_steps", {"max_episode_steps": 0}),
    ("max_episode_steps", {"max_episode_steps": None}),
    ("info_bytes", {"info_bytes": 0}),
    ("n_steps", {"n_steps": 3, "gamma": 0.9}),
    ("max_lag_steps", {"max_lag_steps": -1}),
]


@pytest.mark.parametrize(("field", "options"), REFUSED, ids=str)
def test_wrong_options_are_named(new_buffer: NewBuffer, field: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        new_buffer(DummyVecEnv([Count]), **options)
    assert refusal.value.metadata["field"] == field


def test_observations_without_goals_are_refused(in_table: dict[str, Any]) -> None:
    env = DummyVecEnv([lambda: gymnasium.make("CartPole-v1")])
    with pytest.raises(InvalidArgumentError, match=r"observation_space: .*desired_goal"):
        ServiceHerReplayBuffer(100, env.observation_space, env.action_space, env, **in_table)


@pytest.mark.parametrize("option", ["n_sampled_goal", "goal_selection_strategy", "copy_info_dict"])
def test_the_buffer_without_goals_names_the_one_with_goals(in_table: dict[str, Any], option: str) -> None:
    with pytest.raises(TypeError, match=f"no argument '{option}'; use ServiceHerReplayBuffer"):
        ServiceReplayBuffer(100, Count.observation_space, Count.action_space, **{**in_table, option: 4})


def test_an_episode_that_is_too_long_is_refused_before_anything_is_added(new_buffer: NewBuffer) -> None:
    env = DummyVecEnv([Count])
    buffer = new_buffer(env, max_episode_steps=2)
    with pytest.raises(InvalidArgumentError, match=r"max_episode_steps: expected .* got 2"):
        fill(env, 40, buffer)
    buffer.truncate_last_trajectory()
    assert buffer.sample(200).dones.max() <= 1


def test_infos_that_do_not_fit_are_refused(new_buffer: NewBuffer) -> None:
    env = DummyVecEnv([Count])
    buffer = new_buffer(env, copy_info_dict=True, info_bytes=40)
    seen = env.reset()
    step = (seen, seen, np.zeros(1, int), np.zeros(1), np.zeros(1, bool))
    with pytest.raises(
        InvalidArgumentError, match=r"infos\[0\]: expected at most 40 bytes of JSON.*info_bytes, got 52"
    ):
        buffer.add(*step, [{"text": "x" * 40}])
    with pytest.raises(InvalidArgumentError, match=r"infos\[0\]: expected values that JSON can hold, got a Count"):
        buffer.add(*step, [{"env": env.envs[0]}])
    assert buffer.pos == 0


def test_an_episode_begins_anew_after_a_reset_and_after_an_interruption(new_buffer: NewBuffer) -> None:
    buffer = new_buffer(DummyVecEnv([Count]), max_episode_steps=3)

    def add(number: float) -> None:
        seen, after = ({name: np.array([[each]]) for name in observation_names} for each in (number, number + 1))
        buffer.add(seen, after, np.zeros(1, int), np.zeros(1), np.zeros(1, bool), [{}])

    observation_names = list(Count.observation_space)
    for number in (0, 1, 2):
        add(number)
    for number in (10, 11):  # another episode, although nothing has said that the one before is over
        add(number)
    buffer.reset()
    for number in (20, 21, 22):
        add(number)
    buffer.close()
    assert set(observed(buffer.sample(200), "observation").tolist()) == {20, 21, 22}


def test_the_final_observation_in_an_info_is_left_out(new_buffer: NewBuffer) -> None:
    env = DummyVecEnv([Count])
    buffer = new_buffer(env, copy_info_dict=True, info_bytes=80)
    fill(env, 10, buffer)  # with the observations, the infos would have 150 bytes
    assert len(buffer.sample(10).rewards) == 10


def test_rewards_of_another_number_are_refused(new_buffer: NewBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
    env = DummyVecEnv([Count])
    buffer = new_buffer(env)
    fill(env, 20, buffer)
    monkeypatch.setattr(Count, "compute_reward", lambda *_: np.zeros(7))
    with pytest.raises(
        InvalidArgumentError, match=r"compute_reward: expected one reward for each of 8 goals, got .*\[7\]"
    ):
        buffer.sample(10)


def test_a_saved_model_goes_on_with_the_same_rows(in_table: dict[str, Any], tmp_path: Path) -> None:
    env = DummyVecEnv([lambda: BitFlippingEnv(n_bits=4)])
    replay = {**in_table, "max_episode_steps": 4}
    options: dict[str, Any] = {"learning_starts": 20, "policy_kwargs": {"net_arch": [8]}}
    given: dict[str, Any] = {"replay_buffer_class": ServiceHerReplayBuffer, "replay_buffer_kwargs": replay, **options}
    model = DQN("MultiInputPolicy", env, **given)
    model.learn(60)
    model.save_replay_buffer(tmp_path / "buffer")
    other = DQN("MultiInputPolicy", env, **given)
    other.load_replay_buffer(tmp_path / "buffer")
    assert isinstance(other.replay_buffer, ServiceHerReplayBuffer)
    assert other.replay_buffer.size() >= 60
    other.learn(30)
    other.replay_buffer.close()
    assert other.replay_buffer.size() >= 90
