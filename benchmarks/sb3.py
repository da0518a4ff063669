"""Compares the service with the buffers of Stable-Baselines3, in steps per second: whole algorithms, and replay alone.

    pip install 'gymnasium[mujoco]'             # for SAC on Hopper
    python -m benchmarks.sb3 [--pairs 20] [--only TEXT]

Both buffers take part in each pair of runs, in turn; algorithms of Stable-Baselines3 take turns every few seconds, so
that a change in the speed of the machine affects both. The server runs in a separate process on the same cores.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
from gymnasium import spaces
from replay_client import ReplayClient
from replay_client.sb3 import ServiceHerReplayBuffer, ServiceReplayBuffer
from replay_proto.command_line import new_app, run_app
from rich.console import Console
from rich.progress import track
from stable_baselines3 import DQN, SAC, HerReplayBuffer
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from benchmarks.paired import compared
from benchmarks.report import Section
from benchmarks.service import running_server
from examples import dqn_cleanrl, dqn_cleanrl_in_process, sac_cleanrl

PAIRS = 20
SAC_ENV = "Hopper-v5"
SAC_WARM_UP_STEPS = 200
SAC_STEPS = 2_000
SAC_TURN_STEPS = 250
CLEANRL_STEPS = 20_000
SAC_CLEANRL_STEPS = 1_200
HER_BITS = 12
HER_WARM_UP_STEPS = 200
HER_STEPS = 4_000
HER_TURN_STEPS = 500
REPLAY_CAPACITY = 100_000
REPLAY_STEPS = 10_000
REPLAY_BATCH = 256
_OBS = spaces.Box(-np.inf, np.inf, (11,), np.float64)
_ACTION = spaces.Box(-1.0, 1.0, (3,), np.float32)

Run = Callable[[], Iterator[float]]
"""Begins a run of a program. Each item of the iterator runs one turn of it, and is the turn's steps per second."""


def learning(model: OffPolicyAlgorithm, warm_up_steps: int, turn_steps: int, turns: int) -> Iterator[float]:
    """Train from an empty buffer. Yields the steps per second of each turn."""
    assert model.replay_buffer is not None
    model.replay_buffer.reset()  # the table still has the steps of the last run
    model.learn(warm_up_steps)
    for _ in range(turns):
        began_s = time.perf_counter()
        model.learn(turn_steps, reset_num_timesteps=False)
        yield turn_steps / (time.perf_counter() - began_s)


def sac_run(kind: type[ReplayBuffer], options: Mapping[str, Any]) -> Run:
    """Return a function that trains SAC with a buffer of this class. A gradient step follows each environment step."""

    def run() -> Iterator[float]:
        model = SAC("MlpPolicy", SAC_ENV, seed=0, replay_buffer_class=kind, replay_buffer_kwargs=dict(options))
        return learning(model, SAC_WARM_UP_STEPS, SAC_TURN_STEPS, SAC_STEPS // SAC_TURN_STEPS)

    return run


def her_run(kind: type[HerReplayBuffer], options: Mapping[str, Any]) -> Run:
    """Return a function that trains DQN with goals in hindsight. A gradient step follows each environment step."""

    def run() -> Iterator[float]:
        model = DQN(
            "MultiInputPolicy",
            BitFlippingEnv(n_bits=HER_BITS),
            seed=0,
            train_freq=1,
            learning_starts=HER_WARM_UP_STEPS // 2,
            replay_buffer_class=kind,
            replay_buffer_kwargs=dict(options),
        )
        return learning(model, HER_WARM_UP_STEPS, HER_TURN_STEPS, HER_STEPS // HER_TURN_STEPS)

    return run


def cleanrl_run(program: Any, address: str, buffer: Callable[..., ReplayBuffer] | None = None) -> Run:
    """Return a function that trains with one of the two scripts, from its start to its end.

    ``buffer`` replaces the script's buffer class.
    """

    def run() -> Iterator[float]:
        arguments = program.Args(address=address, total_timesteps=CLEANRL_STEPS)
        began_s = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()), mock.patch.object(program, "Buffer", buffer or program.Buffer):
            program.main(arguments)
        yield CLEANRL_STEPS / (time.perf_counter() - began_s)

    return run


def cleanrl_sac_run(address: str, *, in_process: bool) -> Run:
    """Return a function that trains SAC with the script, from its start to its end."""
    sizes: dict[str, Any] = {"total_timesteps": SAC_CLEANRL_STEPS, "learning_starts": SAC_WARM_UP_STEPS}

    def run() -> Iterator[float]:
        arguments = sac_cleanrl.Args(address=address, in_process=in_process, buffer_size=REPLAY_CAPACITY, **sizes)
        began_s = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            sac_cleanrl.main(arguments)
        yield SAC_CLEANRL_STEPS / (time.perf_counter() - began_s)

    return run


def replay_run(kind: type[ReplayBuffer], options: Mapping[str, Any]) -> Run:
    """Return a function that adds a step and draws a batch, again and again."""
    buffer = kind(REPLAY_CAPACITY, _OBS, _ACTION, "cpu", **options)
    rng = np.random.default_rng(0)
    obs, actions = rng.normal(size=(REPLAY_STEPS + 1, 1, 11)), rng.uniform(-1, 1, (REPLAY_STEPS, 1, 3))
    rewards, done = rng.normal(size=(REPLAY_STEPS, 1)), np.zeros(1, bool)

    def run() -> Iterator[float]:
        began_s = time.perf_counter()
        for step in range(REPLAY_STEPS):
            buffer.add(obs[step], obs[step + 1], actions[step], rewards[step], done, [{}])
            buffer.sample(REPLAY_BATCH)
        yield REPLAY_STEPS / (time.perf_counter() - began_s)

    return run


def in_turn(first: Run, second: Run) -> tuple[float, float]:
    """Run two programs in turn, and return the steps per second of each: the harmonic means of their turns."""
    turns = list(zip(first(), second(), strict=True))
    of_first, of_second = zip(*turns, strict=True)
    return statistics.harmonic_mean(of_first), statistics.harmonic_mean(of_second)


def measure(pairs: int = PAIRS, only: str = "") -> Section:
    """Measure the programs whose names contain ``only``, each with the service and with SB3's buffer, in turn."""
    with running_server() as (address, _), ReplayClient(address) as client:
        uniform = {"address": client, "table": "uniform", "backend": "uniform"}
        exact = {**uniform, "table": "exact", "max_lag_steps": 0}
        sac = {**uniform, "table": "sac"}
        her = {**uniform, "table": "her", "max_episode_steps": HER_BITS}
        uniform_buffer = partial(ServiceReplayBuffer, address=address, table="dqn-uniform", backend="uniform")
        own_cleanrl = cleanrl_run(dqn_cleanrl_in_process, address)
        cleanrl_sac = cleanrl_sac_run(address, in_process=False), cleanrl_sac_run(address, in_process=True)
        own_replay = replay_run(ReplayBuffer, {})
        runs: dict[str, tuple[Run, Run]] = {
            f"SAC on {SAC_ENV}": (sac_run(ServiceReplayBuffer, sac), sac_run(ReplayBuffer, {})),
            f"DQN with HER on {HER_BITS} bits": (her_run(ServiceHerReplayBuffer, her), her_run(HerReplayBuffer, {})),
            f"CleanRL's SAC on {SAC_ENV}": cleanrl_sac,
            "CleanRL's DQN on CartPole-v1": (cleanrl_run(dqn_cleanrl_in_process, address, uniform_buffer), own_cleanrl),
            "CleanRL's DQN on CartPole-v1, with priorities": (cleanrl_run(dqn_cleanrl, address), own_cleanrl),
            "replay alone": (replay_run(ServiceReplayBuffer, uniform), own_replay),
            "replay alone, `max_lag_steps=0`": (replay_run(ServiceReplayBuffer, exact), own_replay),
        }
        runs = {name: pair for name, pair in runs.items() if only in name}
        figures: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
        for number in track(range(pairs), description="pairs of runs"):
            for name, (service, own) in runs.items():
                if number % 2:
                    figures[name].append(in_turn(service, own))
                else:
                    of_own, of_service = in_turn(own, service)
                    figures[name].append((of_service, of_own))
    return Section(
        title="Stable-Baselines3 with the service, compared with its own buffer",
        command="python -m benchmarks.sb3",
        header=["program", "steps/s, service", "steps/s, own buffer", "ratio"],
        rows=[[name, *compared(pairs_of_runs)] for name, pairs_of_runs in figures.items()],
        notes=[
            "Medians; the ratio is the geometric mean over all pairs of runs, with its standard error. "
            f"A step of replay alone adds one step and draws a batch of {REPLAY_BATCH}."
        ],
    )


def main(*, pairs: int = PAIRS, only: str = "") -> None:
    """Measure, and print the figures.

    Args:
        pairs: pairs of runs of each program, at least 2.
        only: measure only programs whose names contain this text.
    """
    measure(pairs, only).show(Console(width=120))


if __name__ == "__main__":
    run_app(new_app("python -m benchmarks.sb3", __doc__, main))
