"""The recipes run at a small size; their long forms reach the figures that docs/how-to/recipes.md states."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

pytest.importorskip("jax", reason="jax is not installed")

from replay_client import ReplayClient

from examples.recipes import dreamer, evaluation, her, impala, jax_dqn, muzero, offline, ppo, qmix, rlpd, sac
from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess


@pytest.fixture
def address(server: ServerProcess) -> Iterator[str]:
    """The address of the shared server; torch is left as it was."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(), ReplayClient(server.address) as client:
        before = set(client)
        yield server.address
        for table in set(client) - before:
            client.drop_table(table)
    torch.set_num_threads(threads)


def test_goals_in_hindsight_solve_a_few_bits(address: str) -> None:
    assert her.main(address, bits=4, cycles=20) >= 0.9


def test_the_goals_in_hindsight_are_reached_later_in_the_episode(address: str) -> None:
    with ReplayClient(address) as client:
        table = her.create_table(client, 6)
        network = torch.nn.Linear(12, 6)
        with table.writer() as writer:
            for _ in range(50):
                her.episode(network, 6, np.random.default_rng(0), 1.0, writer)
        batch = table.sample(200)
        obs, action, reward, discount, next_obs = her.relabeled(batch, np.random.default_rng(1))
    assert ((obs[:, :6] != next_obs[:, :6]).sum(1) == 1).all()
    assert (obs[range(200), action] != next_obs[range(200), action]).all()
    assert torch.equal(obs[:, 6:], next_obs[:, 6:])
    is_reached = (next_obs[:, :6] == next_obs[:, 6:]).all(1)
    assert torch.equal(reward == 0.0, is_reached)
    assert torch.equal(discount == 0.0, is_reached)
    assert is_reached.float().mean() > 0.1


def test_a_policy_that_is_optimized_in_lockstep_runs(address: str) -> None:
    assert ppo.main(address, actors=1, updates=20, solved=0.0) > 9.0


def test_generalized_advantages_are_sums_of_later_errors() -> None:
    """Equation 16 of Schulman et al. (2016): a sum of (gamma * lambda) ** l * delta, up to the end of the episode."""
    random = torch.Generator().manual_seed(0)
    values, rewards = torch.randn(3, 9, generator=random), torch.randn(3, 8, generator=random)
    goes_on = (torch.rand(3, 8, generator=random) > 0.3).float()
    advantages = ppo.advantages_of(values, rewards, goes_on)
    for row in range(3):
        for first in range(8):
            expected, factor = 0.0, 1.0
            for step in range(first, 8):
                following = float(values[row, step + 1]) if goes_on[row, step] else 0.0
                expected += factor * (float(rewards[row, step]) + ppo.GAMMA * following - float(values[row, step]))
                factor *= ppo.GAMMA * ppo.LAMBDA
                if not goes_on[row, step]:
                    break
            assert float(advantages[row, first]) == pytest.approx(expected, abs=1e-5)


def test_agents_that_mix_their_values_run(address: str) -> None:
    assert qmix.main(address, episodes=100) in (0.0, 1.0, 7.0, 8.0)


def test_a_mixture_with_demonstrations_runs(address: str) -> None:
    assert -2_000.0 < rlpd.main(address, steps=rlpd.LEARNING_STARTS + 5) < 0.0


def test_evaluators_report_on_what_the_learner_publishes(address: str) -> None:
    assert evaluation.main(address, steps=60_000, solved=9.0) >= 9.0  # which any network reaches


def test_unrolls_are_learned_from(address: str) -> None:
    assert impala.main(address, actors=1, updates=100, solved=0.0) > 9.0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_model_learns_while_its_targets_are_searched_again(address: str) -> None:
    assert muzero.main(address, steps=1_200) > 8.0
    with ReplayClient(address) as client:
        table = client.table(muzero.GAMES)
        assert table.stats().stale == 0
        model = muzero.Model()
        client.publish(muzero.WEIGHTS, model)
        again = threading.Thread(target=muzero.reanalyze, args=(address,), daemon=True)
        again.start()
        (rows,) = table.rows(chunk=10_000)
        is_step = rows.ends == 0

        def is_searched_again() -> bool:
            found = table.read(rows.row_keys[is_step])
            policy, value, _ = muzero.search(model, model.represent(torch.from_numpy(found["obs"])))
            close = np.isclose(found["value"], value, atol=1e-5) & np.isclose(found["policy"], policy, atol=1e-5).all(1)
            return bool(close.mean() > 0.95)  # those near the end of the last episode are in no sequence

        wait_until(is_searched_again, "all steps have the values and policies of the newest model")
        client.drop_table(muzero.GAMES)  # which ends the thread
        again.join()


def test_a_search_looks_at_all_sequences_of_actions() -> None:
    """Against the same recursion for one state at a time."""
    model = muzero.Model()

    def searched(state: torch.Tensor, depth: int) -> tuple[list[float], float]:
        log_policy, value, _ = model.predict(state[None])
        if not depth:
            return log_policy[0].exp().tolist(), float(value)
        q = []
        for action in range(2):
            following = model.step(state[None], torch.tensor([action]))
            reward = float(model.predict(following)[2])
            q.append(reward + muzero.GAMMA * searched(following[0], depth - 1)[1])
        weights = np.exp(log_policy[0].numpy() + np.array(q) / muzero.TEMPERATURE - max(q) / muzero.TEMPERATURE)
        policy = weights / weights.sum()
        return policy.tolist(), float(policy @ q)

    with torch.no_grad():
        states = model.represent(torch.randn(5, 4))
        policies, values, _ = muzero.search(model, states)
        for state, policy, value in zip(states, policies, values, strict=True):
            due_policy, due_value = searched(state, muzero.DEPTH)
            np.testing.assert_allclose(policy, due_policy, atol=1e-4)
            assert float(value) == pytest.approx(due_value, abs=1e-4)


class _FixedModel:
    """A model whose predictions are parameters: one value for each sequence and step; rewards of 0."""

    def __init__(self, sequences: int) -> None:
        self.values = torch.zeros(sequences, muzero.UNROLL + 1, requires_grad=True)
        self._step = -1

    def represent(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(obs), 1)

    def step(self, state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return state

    def predict(self, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        self._step += 1
        return torch.zeros(len(state), 2), self.values[:, self._step], torch.zeros(len(state))


def test_values_of_a_truncated_episode_are_bootstrapped_and_those_of_a_terminated_one_are_not(address: str) -> None:
    stored, scale = [10.0, 11.0, 12.0], 1 - muzero.GAMMA
    with ReplayClient(address) as client:
        table = client.create_table("ends", columns=muzero.COLUMNS, capacity=100, steps=muzero.SEQUENCES)
        with table.writer(streams=2) as writer:
            for stream, terminated in enumerate([False, True]):
                for value in stored:
                    writer[stream].append(obs=[0] * 4, action=0, reward=1, value=value, policy=[0, 1])
                writer[stream].end_episode(obs=[0] * 4, terminated=terminated)
        with table.sampler(64, device="cpu", prefetch=1) as sampler:
            batch = next(sampler)
        client.drop_table("ends")
    model, is_first = _FixedModel(64), (batch["value"][:, 0] == stored[0]).numpy()
    is_terminated = (batch["discount"][:, 2] == 0).numpy()
    muzero.loss_of(model, batch).backward()  # type: ignore[arg-type]
    assert model.values.grad is not None
    targets = -model.values.grad.numpy() * 64 / 20  # of the error 10 * (value - target) ** 2, where the value is 0
    bootstrapped = [scale * (1 + muzero.GAMMA) + muzero.GAMMA**2 * 12.0, scale + muzero.GAMMA * 12.0, 12.0]
    finite = [scale * sum(muzero.GAMMA**step for step in range(left)) for left in (3, 2, 1)]
    assert (is_first & is_terminated).any()
    assert (is_first & ~is_terminated).any()
    for sequence in np.flatnonzero(is_first):
        due = finite if is_terminated[sequence] else bootstrapped
        np.testing.assert_allclose(targets[sequence], [*due, 0, 0, 0], rtol=1e-5)


def test_a_world_model_learns_from_a_stream_that_never_ends(address: str) -> None:
    assert dreamer.main(address, steps=1_100) > 8.0
    with ReplayClient(address) as client:
        (rows,) = client.table("dreamer").rows(chunk=10_000)
    assert rows.ends is not None
    assert not rows.ends.any()
    assert len(set(zip(rows.streams.tolist(), rows.episodes.tolist(), strict=True))) == dreamer.ENVS
    for stream in set(rows.streams.tolist()):
        mine = rows.streams == stream
        assert rows["is_first"][mine][0]
        before_first = np.roll(rows["is_first"][mine], -1)[:-1]
        assert not rows["cont"][mine][:-1][before_first].any()  # random play always falls
        assert rows["cont"][mine][:-1][~before_first].all()
        assert not rows["reward"][mine][rows["is_first"][mine]].any()


def test_a_latent_forgets_what_was_before_the_first_observation() -> None:
    model, obs = dreamer.Dreamer(), torch.randn(2, 4)
    pasts = [
        (torch.randn(2, dreamer.LATENT), torch.tensor([0, 1])),
        (torch.randn(2, dreamer.LATENT), torch.tensor([1, 0])),
    ]
    first = torch.tensor([True, False])
    (one, _), (other, _) = (model.observe(latent, action, obs, first) for latent, action in pasts)
    assert torch.equal(one[0], other[0])
    assert not torch.allclose(one[1], other[1])


def test_stored_episodes_are_a_dataset(address: str) -> None:
    assert offline.main(address, episodes=5, updates=200, workers=1) > 50.0


def test_an_actor_and_critics_share_a_draw(address: str) -> None:
    assert -2_000.0 < sac.main(address, steps=1_040) < 0.0
    with ReplayClient(address) as client:
        stats = client.table("sac").stats()
    assert (stats.stale, stats.updated > 0) == (0, True)


def test_scans_fill_a_table_and_learn_from_it(address: str) -> None:
    assert jax_dqn.main(address, steps=8_192) > 8.0
    with ReplayClient(address) as client:
        stats = client.table("jax-dqn").stats()
    assert stats.inserted == 8_192
    assert stats.updated > 0


def test_the_cartpole_of_jax_is_that_of_gymnasium() -> None:
    env = gymnasium.make("CartPole-v1").unwrapped
    obs, _ = env.reset(seed=0)
    for step in range(200):
        action = step % 3 // 2
        found, is_out = jax_dqn.step_env(np.asarray(obs), np.asarray(action))
        obs, _, terminated, _, _ = env.step(action)
        np.testing.assert_allclose(found, obs, rtol=1e-4, atol=1e-5)
        assert bool(is_out) == terminated
        if terminated:
            return
    raise AssertionError("the pole did not fall")


def test_v_trace_is_what_the_paper_says() -> None:
    """Equation 1 of Espeholt et al. (2018), summed as it is written; episodes may end within an unroll."""
    rng = torch.Generator().manual_seed(0)
    values, rewards = torch.rand(3, 7, generator=rng), torch.rand(3, 6, generator=rng)
    discounts, rhos = torch.rand(3, 6, generator=rng), torch.rand(3, 6, generator=rng)
    mask = torch.tensor([[1.0] * 6, [1.0] * 4 + [0.0] * 2, [1.0] + [0.0] * 5])
    targets, advantages = impala.v_trace(values, rewards, discounts, rhos, mask)
    for unroll in range(3):
        steps = int(mask[unroll].sum())
        for s in range(steps):
            expected, weight = float(values[unroll, s]), 1.0
            for t in range(s, steps):
                difference = rewards[unroll, t] + discounts[unroll, t] * values[unroll, t + 1] - values[unroll, t]
                expected += weight * float(rhos[unroll, t] * difference)
                weight *= float(discounts[unroll, t] * rhos[unroll, t])
            assert float(targets[unroll, s]) == pytest.approx(expected, abs=1e-5)
        following = [*targets[unroll, 1:steps].tolist(), float(values[unroll, steps])]
        for t in range(steps):
            gain = float(rewards[unroll, t] + discounts[unroll, t] * following[t] - values[unroll, t])
            assert float(advantages[unroll, t]) == pytest.approx(float(rhos[unroll, t]) * gain, abs=1e-5)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_recipes_reach_their_figures(address: str) -> None:
    assert her.main(address, bits=12) >= 0.95
    assert qmix.main(address) == 8.0
    assert rlpd.main(address) >= -200.0
    assert evaluation.main(address, evaluators=2) >= 475.0
    assert impala.main(address) >= 400.0
    assert ppo.main(address) >= 450.0
    assert muzero.main(address) >= 350.0
    assert jax_dqn.main(address) >= 450.0
    assert dreamer.main(address) >= 200.0
    assert offline.main(address) >= 475.0
    assert sac.main(address) >= -250.0


@pytest.mark.parametrize("recipe", [dreamer, evaluation, her, impala, jax_dqn, muzero, offline, ppo, qmix, rlpd, sac])
def test_a_recipe_has_at_most_120_lines(recipe: object) -> None:
    assert len(Path(recipe.__file__).read_text("utf-8").splitlines()) <= 120  # type: ignore[attr-defined]
