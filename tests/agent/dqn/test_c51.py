"""C51 compared with slow arithmetic from the paper: equation 7 and algorithm 1 of arXiv:1707.06887."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from replay_agent.dqn.c51 import C51, projected
from replay_agent.dqn.double_dqn import TransitionBatch
from replay_agent.dqn.learner import DoubleDQNConfig
from replay_agent.dqn.networks import DistributionalQNetwork, NetworkSpec, build_network
from torch import nn

LOW, HIGH, ATOMS, ACTIONS, BATCH = -3.0, 5.0, 9, 3, 6
CPU = torch.device("cpu")


def slowly_projected(probabilities: list[float], returns: list[float]) -> list[float]:
    """Algorithm 1 of the paper, one atom after the other."""
    spacing = (HIGH - LOW) / (ATOMS - 1)
    result = [0.0] * ATOMS
    for probability, value in zip(probabilities, returns, strict=True):
        place = (min(max(value, LOW), HIGH) - LOW) / spacing
        below, above = math.floor(place), math.ceil(place)
        if below == above:  # the algorithm as printed loses this probability
            result[below] += probability
        else:
            result[below] += probability * (above - place)
            result[above] += probability * (place - below)
    return result


@given(
    st.lists(st.tuples(st.floats(0.01, 1.0), st.floats(-9.0, 9.0)), min_size=1, max_size=20),
)
def test_a_projection_is_that_of_the_paper(atoms: list[tuple[float, float]]) -> None:
    total = sum(weight for weight, _ in atoms)
    probabilities, returns = [weight / total for weight, _ in atoms], [value for _, value in atoms]
    support = torch.linspace(LOW, HIGH, ATOMS, dtype=torch.float64)
    found = projected(torch.tensor([probabilities]).double(), torch.tensor([returns]).double(), support)
    np.testing.assert_allclose(found[0].numpy(), slowly_projected(probabilities, returns), atol=1e-6)


def batch_of(learner: C51) -> TransitionBatch:
    random = torch.Generator().manual_seed(1)
    return TransitionBatch(
        obs=torch.randn(BATCH, 4, generator=random),
        action=torch.randint(ACTIONS, (BATCH,), generator=random),
        reward=torch.randn(BATCH, generator=random),
        discount=torch.tensor([0.9, 0.0, 0.9, 0.81, 0.0, 0.9]),
        next_obs=torch.randn(BATCH, 4, generator=random),
        weights=torch.rand(BATCH, generator=random) + 0.1,
    )


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("double", [False, True])
def test_the_loss_is_the_weighted_divergence_of_each_row(*, double: bool, dueling: bool) -> None:
    torch.manual_seed(0)
    spec = NetworkSpec((4,), "float32", ACTIONS, (8,), dueling, atoms=ATOMS, value_range=(LOW, HIGH))
    learner = C51(spec, DoubleDQNConfig(1e-3, double=double), CPU)
    learner.target.load_state_dict(build_network(spec).state_dict())
    batch = batch_of(learner)
    support = np.linspace(LOW, HIGH, ATOMS)
    chosen, after = (each(batch.next_obs).softmax(-1).detach().numpy() for each in (learner.online, learner.target))
    chooser = chosen if double else after
    now = learner.online(batch.obs).softmax(-1).detach().numpy()
    divergences, values = [], []
    for row in range(BATCH):
        best = max(range(ACTIONS), key=lambda action: float((chooser[row, action] * support).sum()))
        returns = float(batch.reward[row]) + float(batch.discount[row]) * support
        target = slowly_projected(after[row, best].tolist(), returns.tolist())
        of_action = now[row, int(batch.action[row])]
        divergences.append(sum(p * math.log(p / q) for p, q in zip(target, of_action.tolist(), strict=True) if p > 0))
        values.append(float((of_action * support).sum()))
    found = learner.compute_loss(batch)
    np.testing.assert_allclose(found.priorities.numpy(), divergences, rtol=1e-4, atol=1e-6)
    assert found.loss.item() == pytest.approx(float(np.mean(batch.weights.numpy() * divergences)), rel=1e-5)
    assert found.mean_value.item() == pytest.approx(np.mean(values), rel=1e-4)


def test_actions_have_the_means_of_their_distributions() -> None:
    spec = NetworkSpec((4,), "float32", ACTIONS, (8,), dueling=True, atoms=ATOMS, value_range=(LOW, HIGH))
    network = build_network(spec)
    assert isinstance(network, DistributionalQNetwork)
    obs = torch.randn(5, 4)
    values, states = network.act(obs, torch.zeros(5, 0))
    probabilities = network(obs).softmax(-1).detach().numpy()
    expected = (probabilities * np.linspace(LOW, HIGH, ATOMS)).sum(-1)
    np.testing.assert_allclose(values.detach().numpy(), expected, rtol=1e-5)
    assert states.shape == (5, 0)
    assert "support" not in network.state_dict()  # actors build it from the spec


def test_the_streams_of_a_dueling_network_are_combined_atom_by_atom() -> None:
    spec = NetworkSpec((4,), "float32", ACTIONS, (8,), dueling=True, atoms=ATOMS, value_range=(LOW, HIGH))
    network = build_network(spec)
    seen: dict[str, torch.Tensor] = {}
    for name in ("value", "advantage"):
        stream: nn.Module = getattr(network.head, name)
        stream.register_forward_hook(lambda _, __, output, name=name: seen.update({name: output}))
    logits = network(torch.randn(1, 4)).detach()
    for action in range(ACTIONS):
        for atom in range(ATOMS):
            advantages = seen["advantage"].view(ACTIONS, ATOMS)[:, atom]
            expected = seen["value"].flatten()[atom] + advantages[action] - advantages.mean()
            assert logits[0, action, atom].item() == pytest.approx(expected.item(), abs=1e-6)


def test_a_distribution_is_learned() -> None:
    torch.manual_seed(0)
    spec = NetworkSpec((1,), "float32", 1, (32,), dueling=False, atoms=ATOMS, value_range=(LOW, HIGH))
    learner = C51(spec, DoubleDQNConfig(1e-2), CPU)
    obs = torch.zeros(64, 1)
    random = np.random.default_rng(0)
    for _ in range(300):
        reward = torch.tensor(random.choice([-2.0, 3.0], p=[0.25, 0.75], size=64), dtype=torch.float32)
        zeros = torch.zeros(64)
        learner.update(TransitionBatch(obs, zeros.long(), reward, zeros, obs, torch.ones(64)))
    found = learner.online(obs[:1]).softmax(-1)[0, 0].detach().numpy()
    assert found[1] == pytest.approx(0.25, abs=0.06)
    assert found[6] == pytest.approx(0.75, abs=0.06)
