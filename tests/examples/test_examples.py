"""The examples run at a small size, and do what their comments say."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.wrappers import RecordEpisodeStatistics
from replay_client import ReplayClient

from examples import atari_dqn, ddp_dqn, r2d2
from tests.support.server_process import ServerProcess


@pytest.fixture
def client(server: ServerProcess) -> Iterator[ReplayClient]:
    """A client of the shared server; torch is left as it was, because an example seeds it and sets its threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine, threads would wait for each other
    with torch.random.fork_rng(), ReplayClient(server.address) as made:
        yield made
        for table in made:
            made.drop_table(table)
    torch.set_num_threads(threads)


def test_dqn_runs_and_draws_the_stacks_that_its_agent_sees(client: ReplayClient) -> None:
    assert -1.0 <= atari_dqn.main(client.address, steps=atari_dqn.LEARNING_STARTS + 3 * atari_dqn.ENVS) <= 1.0
    table = client["atari-dqn"]
    assert table.stats().updated > 0
    table.reset()
    with table.writer() as writer:
        env = atari_dqn.make_env(None, writer[0])
        seen = [env.reset(seed=1)[0]]
        for _ in range(atari_dqn.CELLS - 1):
            seen.append(env.step(2)[0])
    batch = table.sample(100, beta=0.4)
    steps = table.read(batch).steps
    assert steps is not None
    np.testing.assert_array_equal(batch["obs"], np.array(seen)[steps])
    np.testing.assert_array_equal(batch["next_obs"], np.array(seen)[np.minimum(steps + 3, len(seen) - 1)])


def test_r2d2_runs(client: ReplayClient) -> None:
    assert r2d2.main(client.address, steps=1_100) >= 1.0
    stats = client["r2d2"].stats()
    assert stats.updated > 0
    batch = client["r2d2"].sample(32, beta=0.6)
    network = r2d2.RecurrentQ()
    assert r2d2.td_errors(
        network, network, {name: torch.as_tensor(column) for name, column in batch.items()}
    ).shape == (
        32,
        r2d2.PERIOD,
    )


@pytest.mark.deep
@pytest.mark.slow
def test_two_ranks_learn_from_one_table(client: ReplayClient) -> None:
    steps = ddp_dqn.LEARNING_STARTS + 20
    assert ddp_dqn.main(client.address, ranks=2, steps=steps) >= 8.0  # an episode has at least that many steps
    stats = client[ddp_dqn.TABLE].stats()
    assert stats.steps is not None
    assert stats.inserted - stats.steps.closing == 2 * steps
    assert stats.sampled >= 2 * 21 * ddp_dqn.BATCH_SIZE
    assert stats.updated > 0


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(3))
def test_two_ranks_solve_cartpole(client: ReplayClient, seed: int) -> None:
    assert ddp_dqn.main(client.address, seed=seed) >= ddp_dqn.SOLVED


def test_masked_steps_leave_the_state_of_the_lstm_alone() -> None:
    network = r2d2.RecurrentQ()
    obs, state, mask = torch.randn(3, 7, 2), torch.randn(3, 2, r2d2.HIDDEN), torch.ones(3, 7, dtype=torch.bool)
    values, after = network(obs, state, mask)
    padded = torch.cat([torch.randn(3, 4, 2), obs, torch.randn(3, 2, 2)], 1)
    padded_mask = torch.cat([torch.zeros(3, 4, dtype=torch.bool), mask, torch.zeros(3, 2, dtype=torch.bool)], 1)
    padded_values, padded_after = network(padded, state, padded_mask)
    torch.testing.assert_close(padded_values[:, 4:-2], values)
    torch.testing.assert_close(padded_after, after)


def test_the_inverse_of_the_rescaling_is_one() -> None:
    x = torch.linspace(-1000.0, 1000.0, 101, dtype=torch.float64)
    torch.testing.assert_close(r2d2.unscaled(r2d2.rescaled(x)), x)
    assert r2d2.rescaled(torch.tensor(3.0)).item() == pytest.approx(1.003)  # sqrt(4) - 1 + 0.001 * 3


@pytest.mark.parametrize("is_terminated", [False, True])
@pytest.mark.parametrize("steps", [1, 4, 5, 9, 20])
def test_n_step_targets_end_with_the_episode(steps: int, *, is_terminated: bool) -> None:
    places, n, gamma = 20, r2d2.N_STEP, 0.9
    rng = np.random.default_rng(steps)
    values, rewards = rng.normal(size=(2, places))
    rewards[steps:] = 0.0
    mask = np.arange(places) < steps
    discount = np.where(mask, gamma, 0.0)
    if is_terminated and steps < places:
        discount[steps - 1] = 0.0
    targets = r2d2.n_step_targets(*(torch.as_tensor(each)[None] for each in (values, rewards, discount, mask)))
    assert targets.shape == (1, places - n)
    for step in range(min(steps, places - n)):
        k = min(n, steps - step)
        bootstrap = 0.0 if is_terminated and step + k == steps < places else values[step + k]
        expected = sum(gamma**i * rewards[step + i] for i in range(k)) + gamma**k * bootstrap
        assert targets[0, step].item() == pytest.approx(expected)


def test_the_scripts_in_the_manner_of_cleanrl_run(client: ReplayClient) -> None:
    pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")
    from examples import dqn_cleanrl, dqn_cleanrl_in_process

    sizes = {"total_timesteps": 400, "learning_starts": 200, "batch_size": 16}
    assert dqn_cleanrl.main(dqn_cleanrl.Args(address=client.address, **sizes)) > 5  # type: ignore[arg-type]
    assert dqn_cleanrl_in_process.main(dqn_cleanrl_in_process.Args(**sizes)) > 5  # type: ignore[arg-type]
    assert client["dqn-cleanrl"].stats().updated > 0


@pytest.mark.parametrize("in_process", [False, True])
def test_sac_in_the_manner_of_cleanrl_runs(client: ReplayClient, *, in_process: bool) -> None:
    pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")
    from examples import sac_cleanrl

    sizes: dict[str, Any] = {"total_timesteps": 450, "learning_starts": 400, "batch_size": 16, "buffer_size": 1_000}
    arguments = sac_cleanrl.Args(address=client.address, in_process=in_process, env_id="Pendulum-v1", **sizes)
    assert -2_000 < sac_cleanrl.main(arguments) < 0
    assert in_process or client["sac-cleanrl"].stats().sampled > 0


class Cliff(gymnasium.Env[Any, Any]):
    """Episodes of 3 steps, which end in a terminal state just when their time is over, or only by the latter."""

    observation_space = gymnasium.spaces.Box(-1, 9, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._at, self._falls = 0, bool(self.np_random.integers(2))
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._at += 1
        is_over = self._at == 3
        self._at = -1 if is_over and self._falls else self._at
        return np.full(1, self._at, np.float32), 1.0, is_over and self._falls, is_over, {}


@pytest.mark.parametrize("name", ["dqn_cleanrl", "dqn_cleanrl_in_process"])
def test_a_terminal_state_is_no_timeout_even_at_the_last_step(
    client: ReplayClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")
    script: Any = importlib.import_module(f"examples.{name}")
    made: list[Any] = []

    def buffer(*args: Any, **kwargs: Any) -> Any:
        made.append(of_library(*args, **kwargs))
        return made[-1]

    of_library = script.Buffer
    monkeypatch.setattr(script, "Buffer", buffer)
    monkeypatch.setattr(script, "make_env", lambda _: RecordEpisodeStatistics(Cliff()))
    address = {"address": client.address} if name == "dqn_cleanrl" else {}
    script.main(script.Args(total_timesteps=160, n_steps=1, **address))
    samples = made[0].sample(400)
    ends = samples.next_observations[:, 0]
    assert {-1.0, 3.0} <= set(ends.tolist())
    assert (samples.dones[:, 0] == (ends == -1.0)).all()


def test_the_scripts_in_the_manner_of_cleanrl_differ_in_eight_lines() -> None:
    folder = Path(atari_dqn.__file__).parent
    service, in_process = ((folder / f"dqn_cleanrl{end}.py").read_text("utf-8") for end in ("", "_in_process"))
    lines = difflib.ndiff(service.splitlines(), in_process.splitlines())
    assert len([line for line in lines if line[0] in "+-"]) <= 8


@pytest.mark.parametrize("name", ["atari_dqn", "ddp_dqn", "dqn_cleanrl", "r2d2"])
def test_an_example_has_fewer_than_150_lines(name: str) -> None:
    assert len(Path(atari_dqn.__file__).with_name(f"{name}.py").read_text("utf-8").splitlines()) < 150
