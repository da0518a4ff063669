"""Gradient steps of Double DQN, compared with the same ones written by hand, without modules, optimizer and autograd's
loss functions.
"""

from __future__ import annotations

import pytest
import torch
from replay_agent.dqn.double_dqn import DoubleDQN, TransitionBatch
from replay_agent.dqn.learner import DoubleDQNConfig
from replay_agent.dqn.networks import NetworkSpec
from torch import Tensor

RATE, EPSILON, MAX_NORM, DELTA, TAU = 1e-2, 1e-5, 0.2, 0.7, 0.1
BETAS = 0.9, 0.999
ROWS, STEPS = 8, 5
Parameters = list[Tensor]


def values(parameters: Parameters, obs: Tensor) -> Tensor:
    weight, bias, head, head_bias = parameters
    return (obs @ weight.T + bias).clamp(min=0) @ head.T + head_bias


def gradients(online: Parameters, target: Parameters, batch: TransitionBatch) -> Parameters:
    rows = torch.arange(ROWS)
    best = values(online, batch.next_obs).argmax(1)
    due = batch.reward + batch.discount * values(target, batch.next_obs)[rows, best]
    errors = values(online, batch.obs)[rows, batch.action] - due
    # The derivative of the weighted mean of Huber losses by each value.
    slopes = batch.weights * errors.clamp(-DELTA, DELTA) / ROWS
    weight, bias, head, _ = online
    hidden = (batch.obs @ weight.T + bias).clamp(min=0)
    by_values = torch.zeros(ROWS, len(head)).index_put_((rows, batch.action), slopes)
    by_hidden = (by_values @ head) * (hidden > 0)
    return [by_hidden.T @ batch.obs, by_hidden.sum(0), by_values.T @ hidden, by_values.sum(0)]


def test_gradient_steps_are_those_written_by_hand() -> None:
    torch.manual_seed(1)
    spec = NetworkSpec((3,), "float32", actions=2, hidden_sizes=(6,), dueling=False)
    config = DoubleDQNConfig(RATE, EPSILON, MAX_NORM, DELTA, double=True, target_interval=1, target_tau=TAU)
    learner = DoubleDQN(spec, config, torch.device("cpu"))
    online = [parameter.detach().clone() for parameter in learner.online.parameters()]
    target = [parameter.clone() for parameter in online]
    means, squares = ([torch.zeros_like(parameter) for parameter in online] for _ in range(2))
    clipped = 0
    for step in range(1, STEPS + 1):
        obs, next_obs = torch.randn(2, ROWS, 3)
        batch = TransitionBatch(
            obs, torch.randint(2, (ROWS,)), 3 * torch.randn(ROWS), torch.rand(ROWS).round(), next_obs, torch.rand(ROWS)
        )
        found = gradients(online, target, batch)
        norm = torch.cat([gradient.flatten() for gradient in found]).norm()
        clipped += int(norm > MAX_NORM)
        for place, gradient in enumerate(found):
            gradient *= min(1.0, MAX_NORM / (norm + 1e-6))  # as torch does it
            means[place] = BETAS[0] * means[place] + (1 - BETAS[0]) * gradient
            squares[place] = BETAS[1] * squares[place] + (1 - BETAS[1]) * gradient**2
            root = (squares[place] / (1 - BETAS[1] ** step)).sqrt() + EPSILON
            online[place] -= RATE * means[place] / (1 - BETAS[0] ** step) / root
            target[place] += TAU * (online[place] - target[place])
        result = learner.update(batch)
        assert result.grad_norm.item() == pytest.approx(norm.item(), rel=1e-5)
        for network, expected in ((learner.online, online), (learner.target, target)):
            for parameter, by_hand in zip(network.parameters(), expected, strict=True):
                torch.testing.assert_close(parameter.detach(), by_hand, rtol=0.0, atol=1e-6)
    assert 0 < clipped < STEPS  # some gradients are too long, and others are not
