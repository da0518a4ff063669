"""Targets and losses, compared with numbers calculated by hand."""

from __future__ import annotations

import pytest
import torch
from replay_agent.dqn import losses

ONLINE = torch.tensor([[1.0, 5.0, 2.0], [4.0, 3.0, 0.0]])
TARGET = torch.tensor([[7.0, 2.0, 9.0], [1.0, 6.0, 8.0]])


def test_double_dqn_lets_the_online_network_choose_and_the_target_network_value() -> None:
    # The online network prefers action 1 in the first row and action 0 in the second.
    assert losses.bootstrap_values(TARGET, ONLINE).tolist() == [2.0, 1.0]


def test_plain_dqn_takes_the_target_networks_largest_value() -> None:
    assert losses.bootstrap_values(TARGET, None).tolist() == [9.0, 8.0]


def test_values_are_those_of_the_actions_taken() -> None:
    assert losses.values_of(ONLINE, torch.tensor([2, 0])).tolist() == [2.0, 4.0]


def test_the_loss_is_the_mean_of_weight_times_huber() -> None:
    td_errors = torch.tensor([0.5, -2.0, 3.0])
    weights = torch.tensor([1.0, 0.5, 0.25])
    # Huber with delta 1: 0.5 * 0.5**2, then 2 - 0.5, then 3 - 0.5; the weight stays outside.
    expected = (1.0 * 0.125 + 0.5 * 1.5 + 0.25 * 2.5) / 3
    assert float(losses.weighted_huber_loss(td_errors, weights, delta=1.0)) == pytest.approx(expected)


def test_delta_is_where_the_loss_becomes_linear() -> None:
    td_errors = torch.tensor([3.0])
    one = torch.ones(1)
    assert float(losses.weighted_huber_loss(td_errors, one, delta=4.0)) == pytest.approx(4.5)
    assert float(losses.weighted_huber_loss(td_errors, one, delta=2.0)) == pytest.approx(2 * (3 - 1))


def test_a_weight_scales_the_gradient_of_its_row() -> None:
    td_errors = torch.tensor([5.0, 5.0], requires_grad=True)
    losses.weighted_huber_loss(td_errors, torch.tensor([1.0, 0.2]), delta=1.0).backward()  # type: ignore[no-untyped-call]
    assert td_errors.grad is not None
    assert td_errors.grad.tolist() == pytest.approx([0.5, 0.1])
