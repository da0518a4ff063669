"""The recipes run at a small size; their long forms reach the figures that docs/recipes.md states."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from replay_client import ReplayClient

from examples.recipes import evaluation, her, qmix, rlpd
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


def test_agents_that_mix_their_values_run(address: str) -> None:
    assert qmix.main(address, episodes=100) in (0.0, 1.0, 7.0, 8.0)


def test_a_mixture_with_demonstrations_runs(address: str) -> None:
    assert -2_000.0 < rlpd.main(address, steps=rlpd.LEARNING_STARTS + 5) < 0.0


def test_evaluators_report_on_what_the_learner_publishes(address: str) -> None:
    assert evaluation.main(address, steps=60_000, solved=9.0) >= 9.0  # which any network reaches


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_recipes_reach_their_figures(address: str) -> None:
    assert her.main(address, bits=12) >= 0.95
    assert qmix.main(address) == 8.0
    assert rlpd.main(address) >= -200.0
    assert evaluation.main(address, evaluators=2) >= 475.0


@pytest.mark.parametrize("recipe", [evaluation, her, qmix, rlpd])
def test_a_recipe_has_at_most_120_lines(recipe: object) -> None:
    assert len(Path(recipe.__file__).read_text("utf-8").splitlines()) <= 120  # type: ignore[attr-defined]
