"""Noisy layers compared with the moments that section 3 of arXiv:1706.10295 gives them."""

from __future__ import annotations

import math

import gymnasium
import numpy as np
import pytest
import torch
from replay_agent.acting.evaluation import evaluate
from replay_agent.dqn.networks import NetworkSpec, build_network
from replay_agent.dqn.noisy import NoisyLinear
from torch import nn

INPUTS, OUTPUTS, SIGMA, DRAWS = 8, 5, 0.5, 20_000
# The mean of |x| for a standard normal x, which is the variance of f(x) = sign(x) sqrt(|x|).
VARIANCE = math.sqrt(2 / math.pi)


def test_outputs_have_the_moments_of_factorized_noise() -> None:
    torch.manual_seed(0)
    layer = NoisyLinear(INPUTS, OUTPUTS, SIGMA)
    features = torch.randn(INPUTS)
    with torch.no_grad():
        drawn = torch.stack([layer(features) for _ in range(DRAWS)]).numpy()
    mean = (layer.weight @ features + layer.bias).detach().numpy()
    sigma = SIGMA / math.sqrt(INPUTS)
    # Each output is its mean, plus sigma f(e_j) (1 + sum of f(e_i) x_i).
    variance = sigma**2 * VARIANCE * (1 + VARIANCE * float((features**2).sum()))
    np.testing.assert_allclose(drawn.mean(axis=0), mean, atol=5 * math.sqrt(variance / DRAWS))
    np.testing.assert_allclose(drawn.var(axis=0), variance, rtol=0.1)
    # The noise of two outputs has the factor of the inputs in common, but no correlation.
    assert abs(np.corrcoef(drawn[:, 0], drawn[:, 1])[0, 1]) < 0.05


def test_weights_begin_in_the_ranges_of_the_paper() -> None:
    torch.manual_seed(0)
    layer = NoisyLinear(100, 200, SIGMA)
    bound = 1 / math.sqrt(100)
    assert layer.weight.abs().max().item() <= bound
    assert layer.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
    assert torch.equal(layer.weight_sigma, torch.full((200, 100), SIGMA * bound))
    assert torch.equal(layer.bias_sigma, torch.full((200,), SIGMA * bound))


def test_there_is_no_noise_in_evaluation_mode() -> None:
    layer = NoisyLinear(INPUTS, OUTPUTS, SIGMA).eval()
    features = torch.randn(3, INPUTS)
    expected = nn.functional.linear(features, layer.weight, layer.bias)
    assert torch.equal(layer(features), expected)
    assert torch.equal(layer(features), expected)


def test_the_scale_of_the_noise_is_learned() -> None:
    torch.manual_seed(0)
    layer = NoisyLinear(INPUTS, 1, SIGMA)
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
    for _ in range(500):
        features = torch.randn(32, INPUTS)
        loss = (layer(features)[:, 0] - features.sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert layer.weight_sigma.abs().mean().item() < 0.1 * SIGMA / math.sqrt(INPUTS)


@pytest.mark.parametrize("dueling", [False, True])
def test_all_dense_layers_of_a_noisy_network_are_noisy(*, dueling: bool) -> None:
    network = build_network(NetworkSpec((4,), "float32", 2, (16, 8), dueling, noisy_sigma=SIGMA))
    kinds = {type(module) for module in network.modules()}
    assert NoisyLinear in kinds
    assert nn.Linear not in kinds
    obs = torch.randn(1, 4)
    assert not torch.equal(network(obs), network(obs))


def test_an_evaluation_is_without_noise_and_training_goes_on_with_it() -> None:
    network = build_network(NetworkSpec((4,), "float32", 2, (16,), dueling=False, noisy_sigma=5.0))
    played = [evaluate(network, lambda: gymnasium.make("CartPole-v1"), [1, 2, 3]).returns.tolist() for _ in range(3)]
    assert played[0] == played[1] == played[2]
    assert network.training
