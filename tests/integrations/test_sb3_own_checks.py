"""What Stable-Baselines3 tests of its own replay buffers; docs/how-to/integrations.md says what does not apply."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from replay_client import ReplayClient

pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")

from replay_client.sb3 import ServiceReplayBuffer
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import get_device
from stable_baselines3.common.vec_env import VecNormalize

from tests.support.server_process import ServerProcess

NewBuffer = Callable[..., ServiceReplayBuffer]
UNIT = spaces.Box(0, 1, (4,))
PAIR = spaces.Box(0, 1, (2,))


class Cycle(gymnasium.Env[Any, Any]):
    """Observations and rewards are 1, 2, 3, 4, 5, 1, ...; an episode is truncated after 100 steps."""

    observation_space: Any = spaces.Box(1, 5, (1,))
    action_space: Any = spaces.Box(1, 5, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return self._seen(), self._steps % 5 + 1.0, False, self._steps >= 100, {}

    def _seen(self) -> Any:
        return np.array([self._steps % 5 + 1], np.float32)


class DictCycle(Cycle):
    """The same, with observations of three parts and actions of two axes."""

    observation_space = spaces.Dict(dict.fromkeys(("observation", "achieved", "desired"), Cycle.observation_space))
    action_space = spaces.Box(1, 5, (10, 7))

    def _seen(self) -> Any:
        return dict.fromkeys(self.observation_space, super()._seen())


@pytest.fixture
def new_buffer(server: ServerProcess) -> Iterator[NewBuffer]:
    """Creates a buffer, and drops its table at the end."""
    made: list[ServiceReplayBuffer] = []

    def create(observed: Any, acting: Any, size: int = 1000, **options: Any) -> ServiceReplayBuffer:
        options |= {"address": client, "table": "sb3-own", "max_lag_steps": 0}
        made.append(ServiceReplayBuffer(size, observed, acting, **options))
        return made[-1]

    with ReplayClient(server.address) as client:
        yield create
        for buffer in made:
            buffer.close()
        if "sb3-own" in client:
            client.drop_table("sb3-own")


def filled(new_buffer: NewBuffer, env: Any, device: str = "cpu") -> ServiceReplayBuffer:
    """A buffer with 100 steps of an environment, without normalization."""
    buffer = new_buffer(env.observation_space, env.action_space, device=device)
    raw = isinstance(env, VecNormalize)
    obs = env.reset()
    obs = env.get_original_obs() if raw else obs
    for _ in range(100):
        actions = np.stack([env.action_space.sample()])
        next_obs, reward, done, infos = env.step(actions)
        if raw:
            next_obs, reward = env.get_original_obs(), env.get_original_reward()
        buffer.add(obs, next_obs, actions, reward, done, infos)
        obs = next_obs
    return buffer


def leaves(samples: Any) -> list[torch.Tensor]:
    parts = [part for part in samples if part is not None]
    return [leaf for part in parts for leaf in (part.values() if isinstance(part, dict) else [part])]


@pytest.mark.parametrize("kind", [Cycle, DictCycle])
def test_samples_are_normalized(new_buffer: NewBuffer, kind: Any) -> None:
    env = VecNormalize(make_vec_env(kind))
    samples = filled(new_buffer, env).sample(50, env)
    for values in leaves((samples.observations, samples.next_observations, samples.rewards)):
        assert abs(values.mean()) < 1


@pytest.mark.parametrize("kind", [Cycle, DictCycle])
@pytest.mark.parametrize("device", ["cpu", "cuda", "auto"])
def test_samples_are_on_the_device(new_buffer: NewBuffer, kind: Any, device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    samples = filled(new_buffer, make_vec_env(kind), device).sample(50)
    assert {leaf.device.type for leaf in leaves(samples)} == {get_device(device).type}


DTYPES = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64"]


@pytest.mark.parametrize(
    ("acting", "expected"),
    [
        (spaces.Discrete(10), torch.int64),
        (spaces.Box(-1, 1, dtype=np.float32), torch.float32),
        (spaces.Box(-1, 1, dtype=np.float64), torch.float32),  # as in SB3, because its networks are of float32
    ],
)
def test_samples_have_the_dtypes_of_the_spaces(
    new_buffer: NewBuffer, acting: spaces.Space[Any], expected: torch.dtype
) -> None:
    observed = spaces.Dict({name: spaces.Box(0, 100, dtype=np.dtype(name).type) for name in DTYPES})
    buffer = new_buffer(observed, acting, device="cpu")
    seen = {name: space.sample()[None] for name, space in observed.items()}
    buffer.add(seen, seen, np.stack([acting.sample()]), np.ones(1), np.ones(1, bool), [{}])
    samples: Any = buffer.sample(64)
    assert samples.actions.dtype == expected
    assert {name: str(values.dtype) for name, values in samples.observations.items()} == {
        name: f"torch.{name}" for name in DTYPES
    }


def returned(
    new_buffer: NewBuffer, of_step: int, length: int, done_at: int = -1, truncated_at: int = -1, **options: Any
) -> Any:
    """The return of a step of an environment with rewards of 1, and whether it is done."""
    buffer = new_buffer(UNIT, PAIR, device="cpu", **options)
    for step in range(length):
        obs, done = np.full((1, 4), step, np.float32), np.array([float(step == done_at)])
        infos = [{"TimeLimit.truncated": step == truncated_at}]
        buffer.add(obs, obs + 1, np.zeros((1, 2), np.float32), np.ones(1), done, infos)
    samples = buffer.sample(100)
    place = int((samples.observations[:, 0] == of_step).nonzero()[0, 0])
    return samples.rewards[place].item(), samples.dones[place].item()


@pytest.mark.parametrize("done_at", [1, 2])
@pytest.mark.parametrize("n_steps", [3, 5])
def test_a_return_stops_at_a_terminal_state(new_buffer: NewBuffer, n_steps: int, done_at: int) -> None:
    found = returned(new_buffer, 0, 5, done_at=done_at, n_steps=n_steps, gamma=0.99)
    assert found == (pytest.approx(sum(0.99**step for step in range(done_at + 1))), 1.0)


@pytest.mark.parametrize("truncated_at", [1, 2])
def test_a_return_stops_at_a_time_limit_even_if_the_episode_is_not_done(
    new_buffer: NewBuffer, truncated_at: int
) -> None:
    found = returned(new_buffer, 0, 5, truncated_at=truncated_at, n_steps=3, gamma=0.99)
    assert found == (pytest.approx(sum(0.99**step for step in range(truncated_at + 1))), 0.0)


@pytest.mark.parametrize("n_steps", [1, 3, 5])
def test_a_return_spans_n_steps(new_buffer: NewBuffer, n_steps: int) -> None:
    found = returned(new_buffer, 3, 10, n_steps=n_steps, gamma=0.99)
    assert found == (pytest.approx(sum(0.99**step for step in range(n_steps))), 0.0)


@pytest.mark.parametrize("n_steps", [3, 5])
def test_a_return_in_a_full_buffer_spans_no_older_steps(new_buffer: NewBuffer, n_steps: int) -> None:
    buffer = new_buffer(UNIT, PAIR, size=10, device="cpu", n_steps=n_steps, gamma=0.99)
    for step in range(12):
        obs = np.full((1, 4), step, np.float32)
        buffer.add(obs, obs + 1, np.zeros((1, 2), np.float32), np.ones(1), np.zeros(1, bool), [{}])
    samples = buffer.sample(200)
    whole = sum(0.99**step for step in range(n_steps))
    assert samples.rewards.tolist() == [[pytest.approx(whole)]] * 200
    assert set(samples.observations[:, 0].tolist()) == {float(step) for step in range(2, 12 - n_steps)}


def test_steps_of_another_buffer_are_added_one_by_one(new_buffer: NewBuffer) -> None:
    other, buffer = ReplayBuffer(20, UNIT, PAIR, "cpu"), new_buffer(UNIT, PAIR, device="cpu")
    for step in range(20):
        obs = np.full((1, 4), step, np.float32)
        other.add(obs, obs + 1, np.zeros((1, 2)), np.ones(1), np.array([step % 5 == 4]), [{}])
    infos = [[{"TimeLimit.truncated": flag}] for flag in other.timeouts[:, 0]]
    buffer.extend(other.observations, other.next_observations, other.actions, other.rewards, other.dones, infos)
    samples = buffer.sample(200)
    drawn = torch.cat([samples.observations[:, :1], samples.next_observations[:, :1], samples.dones], dim=1)
    assert {tuple(row) for row in drawn.tolist()} == {(step, step + 1, step % 5 == 4) for step in range(20)}
