"""Training to the end with Stable-Baselines3, compared with its own buffers: `make integrations`."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replay_client import ReplayClient

pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")

from replay_client.sb3 import PrioritizedDQN, ServiceHerReplayBuffer, ServiceReplayBuffer
from stable_baselines3 import DQN, HerReplayBuffer
from stable_baselines3.common.callbacks import EvalCallback, StopTrainingOnRewardThreshold
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv

from examples import dqn_cleanrl, dqn_cleanrl_in_process
from tests.support.server_process import ServerProcess

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]
SOLVED = 475
ON_CARTPOLE: dict[str, Any] = {
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1_000,
    "target_update_interval": 10,
    "train_freq": 256,
    "gradient_steps": 128,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
    "policy_kwargs": {"net_arch": [256, 256]},
}
"""Of RL Baselines3 Zoo, for DQN."""
SEEDS = 20
"""Returns of two seeds differ by about 25. Means of five seeds often differ by half as much, by chance."""


@pytest.fixture
def in_table(server: ServerProcess) -> Iterator[Callable[[], dict[str, Any]]]:
    """Makes the ``replay_buffer_kwargs`` of a new table; drops the tables at the end."""
    with ReplayClient(server.address) as client:
        names: list[str] = []

        def create() -> dict[str, Any]:
            names.append(f"sb3-{uuid.uuid4().hex}")
            return {"address": client, "table": names[-1]}

        yield create
        for name in set(names) & set(client):
            client.drop_table(name)


@pytest.mark.parametrize("n_envs", [1, 4])
def test_prioritized_dqn_solves_cartpole(in_table: Callable[[], dict[str, Any]], n_envs: int) -> None:
    options = {**ON_CARTPOLE, "train_freq": 256 // n_envs}
    model = PrioritizedDQN(
        "MlpPolicy", make_vec_env("CartPole-v1", n_envs), seed=1, replay_buffer_kwargs=in_table(), **options
    )
    solved = EvalCallback(
        make_vec_env("CartPole-v1", seed=7),
        callback_on_new_best=StopTrainingOnRewardThreshold(SOLVED),
        n_eval_episodes=20,
        eval_freq=1024 // n_envs,
        verbose=0,
    )
    model.learn(100_000, solved)
    print(f"\nPrioritizedDQN, {n_envs} environments: {solved.best_mean_reward} after {model.num_timesteps} steps")
    assert solved.best_mean_reward >= SOLVED


def learned(seed: int, steps: int, **options: Any) -> tuple[float, float]:
    """The mean return of the last 50 episodes, and the seconds that it took."""
    model = DQN("MlpPolicy", "CartPole-v1", seed=seed, stats_window_size=50, **ON_CARTPOLE, **options)
    began = time.perf_counter()
    model.learn(steps)
    took_s = time.perf_counter() - began
    assert model.ep_info_buffer is not None
    return float(np.mean([episode["r"] for episode in model.ep_info_buffer])), took_s


def test_without_prioritization_it_learns_as_the_buffer_of_sb3_in_the_same_time(
    in_table: Callable[[], dict[str, Any]],
) -> None:
    plain, service = [], []
    for seed in range(SEEDS):  # in turns, because the speed of the machine varies
        plain.append(learned(seed, 20_000))
        options = {**in_table(), "alpha": 0.0}
        service.append(learned(seed, 20_000, replay_buffer_class=ServiceReplayBuffer, replay_buffer_kwargs=options))
    (plain_returns, plain_s), (service_returns, service_s) = np.array(plain).T, np.array(service).T
    ratio = float(np.median(service_s / plain_s))
    print(f"\nreturns {plain_returns.round()} in process, {service_returns.round()} by the service; {ratio:.2f} x")
    differences = service_returns - plain_returns
    error = differences.std(ddof=1) / np.sqrt(SEEDS)
    print(f"difference {differences.mean():.1f} +- {error:.1f}")
    assert abs(differences.mean()) <= 3 * error
    assert ratio <= 1.2


BITS = 12
HER_STEPS = 30_000
HER_SEEDS = 3


def flipped(seed: int, kind: type[HerReplayBuffer], **options: Any) -> tuple[float, float]:
    """The rate of success of the last 100 episodes, and the seconds that it took."""
    model = DQN(
        "MultiInputPolicy",
        BitFlippingEnv(n_bits=BITS),
        seed=seed,
        learning_rate=5e-4,
        learning_starts=1_000,
        batch_size=128,
        train_freq=1,
        target_update_interval=500,
        exploration_fraction=0.5,
        policy_kwargs={"net_arch": [64, 64]},
        replay_buffer_class=kind,
        replay_buffer_kwargs=options,
    )
    began = time.perf_counter()
    model.learn(HER_STEPS)
    took_s = time.perf_counter() - began
    assert model.ep_success_buffer is not None
    return float(np.mean(model.ep_success_buffer)), took_s


def test_goals_in_hindsight_succeed_as_with_the_buffer_of_sb3(in_table: Callable[[], dict[str, Any]]) -> None:
    plain, service = [], []
    for seed in range(HER_SEEDS):
        plain.append(flipped(seed, HerReplayBuffer))
        service.append(flipped(seed, ServiceHerReplayBuffer, **in_table(), max_episode_steps=BITS))
    (plain_rates, plain_s), (service_rates, service_s) = np.array(plain).T, np.array(service).T
    ratio = float(np.median(plain_s / service_s))
    print(f"\nsuccess {plain_rates} in process, {service_rates} by the service; {ratio:.2f} x steps per second")
    assert service_rates.mean() >= 0.9 * plain_rates.mean()
    assert ratio >= 0.9


GOES_ON = """
import sys
import gymnasium
import numpy as np
from replay_client.sb3 import PrioritizedDQN

model = PrioritizedDQN.load(sys.argv[1], env=gymnasium.make("CartPole-v1"))
model.load_replay_buffer(sys.argv[2])
print(*np.unique(model.replay_buffer.sample(5000).row_keys))
model.learn(100)
"""


def test_a_new_process_goes_on_with_the_same_rows(server: ServerProcess, tmp_path: Path) -> None:
    with ReplayClient(server.address) as client:
        replay = {"address": server.address, "table": f"sb3-{uuid.uuid4().hex}"}
        model = PrioritizedDQN("MlpPolicy", "CartPole-v1", learning_starts=20, replay_buffer_kwargs=replay)
        model.learn(100)
        model.save(tmp_path / "model")
        model.save_replay_buffer(tmp_path / "buffer")
        table = client[replay["table"]]
        keys = sorted(set(table.sample(5000, beta=1.0, draw_mode="stratified").row_keys.tolist()))
        rows, updated = len(table), table.stats().updated
        command = [sys.executable, "-c", GOES_ON, str(tmp_path / "model"), str(tmp_path / "buffer")]
        shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
        assert [int(key) for key in shown.split()] == keys
        assert len(table) >= rows + 100
        assert table.stats().updated > updated
        table.drop()


@pytest.mark.parametrize("program", [dqn_cleanrl, dqn_cleanrl_in_process])
def test_the_scripts_in_the_manner_of_cleanrl_learn(server: ServerProcess, program: Any) -> None:
    result = program.main(program.Args(address=server.address))
    print(f"\n{program.__name__}: {result:.0f}")
    assert result > 195
