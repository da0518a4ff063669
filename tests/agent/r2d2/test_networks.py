from __future__ import annotations

import numpy as np
import pytest
import torch
from replay_agent.dqn.networks import NetworkSpec
from replay_agent.r2d2 import RecurrentQNetwork, build_recurrent_network
from torch import Tensor

UNITS, ACTIONS = 5, 3
SHAPES = [((3,), "float32"), ((10, 10, 4), "uint8"), ((4, 36, 36), "uint8")]


def network_for(shape: tuple[int, ...], dtype: str, *, dueling: bool = False) -> RecurrentQNetwork:
    torch.manual_seed(2)
    return build_recurrent_network(NetworkSpec(shape, dtype, ACTIONS, (8,), dueling, lstm_units=UNITS))


def observations(batch: int, places: int, shape: tuple[int, ...], dtype: str) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    values = torch.rand(batch, places, *shape, generator=generator)
    return values if dtype == "float32" else (values * 255).to(torch.uint8)


def lasts_of(batch: int, places: int) -> Tensor:
    """Last actions and rewards, in a form that is as arbitrary as the observations."""
    return torch.randn(batch, places, ACTIONS + 1, generator=torch.Generator().manual_seed(9))


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize(("shape", "dtype"), SHAPES)
@torch.no_grad()
def test_a_sequence_is_the_same_at_once_as_step_by_step(shape: tuple[int, ...], dtype: str, dueling: bool) -> None:
    network, seen = network_for(shape, dtype, dueling=dueling), observations(2, 6, shape, dtype)
    lasts, states = lasts_of(2, 6), torch.zeros(2, *network.state_shape)
    together, last = network(seen, lasts, network.parts(states)[0])
    assert together.shape == (2, 6, ACTIONS)
    for place in range(6):
        states[:, 2 * UNITS :] = lasts[:, place]
        values, states = network.act(seen[:, place], states)
        torch.testing.assert_close(values, together[:, place])
    torch.testing.assert_close(network.parts(states)[0], last)
    assert not network.parts(states)[1].any()


@torch.no_grad()
def test_places_without_a_step_leave_the_state_as_it_is() -> None:
    network, seen, lasts = network_for((3,), "float32"), observations(2, 6, (3,), "float32"), lasts_of(2, 6)
    mask = torch.tensor([[False, False, True, True], [True, True, True, True]])
    states = torch.randn(2, 2, UNITS)
    values = network.after_burn_in(seen, lasts, states, mask)
    torch.testing.assert_close(values[:1], network(seen[:1, 2:], lasts[:1, 2:], states[:1])[0][:, 2:])
    torch.testing.assert_close(values[1:], network(seen[1:], lasts[1:], states[1:])[0][:, 4:])
    assert torch.equal(network.after_burn_in(seen, lasts, states, mask[:, :0]), network(seen, lasts, states)[0])


def test_all_positions_are_encoded_at_once_and_the_burn_in_without_gradients() -> None:
    network, seen, lasts = network_for((3,), "float32"), observations(2, 6, (3,), "float32"), lasts_of(2, 6)
    encoded = []
    network.torso.register_forward_hook(lambda *call: encoded.append(len(call[-1])))
    lasts.requires_grad_()
    values = network.after_burn_in(seen, lasts, torch.zeros(2, 2, UNITS), torch.ones(2, 4, dtype=torch.bool))
    assert encoded == [12]
    (gradient,) = torch.autograd.grad(values.sum(), lasts)
    assert not gradient[:, :4].any()
    assert gradient[:, 4:].any()


@pytest.mark.parametrize("what", ["observation", "action", "reward"])
@torch.no_grad()
def test_the_network_remembers_what_it_saw(what: str) -> None:
    network, seen, lasts = network_for((3,), "float32"), observations(1, 4, (3,), "float32"), lasts_of(1, 4)
    states, other, other_lasts = torch.zeros(1, 2, UNITS), seen.clone(), lasts.clone()
    if what == "observation":
        other[:, 0] += 1.0
    else:
        other_lasts[:, 0, 1 if what == "action" else -1] += 1.0
    values, changed = network(seen, lasts, states)[0], network(other, other_lasts, states)[0]
    assert not torch.allclose(values[:, -1], changed[:, -1])


def test_a_network_may_be_fed_neither_actions_nor_rewards() -> None:
    network = build_recurrent_network(
        NetworkSpec((3,), "float32", ACTIONS, (8,), False, lstm_units=UNITS, feeds_last=False)
    )
    states = np.ones((2, *network.state_shape), np.float32)
    network.remember(states, np.array([1, 2]), np.array([3.0, 4.0]))
    assert (states == 1).all()
    actions, rewards, mask = torch.ones(1, 4).long(), torch.ones(1, 4), torch.ones(1, 4, dtype=torch.bool)
    assert not network.lasts(actions, rewards, mask, torch.zeros(1, ACTIONS + 1)).any()


def test_the_last_actions_and_rewards_are_those_of_the_steps_before() -> None:
    network = network_for((3,), "float32")
    actions = torch.tensor([[2, 0, 1, 0], [0, 0, 2, 1]])
    rewards = torch.tensor([[5.0, 6.0, 7.0, 0.0], [0.0, 0.0, 8.0, 9.0]])
    mask = torch.tensor([[True, True, True, False], [False, False, True, True]])
    first = torch.tensor([[0, 1, 0, 3.5], [0, 0, 0, 0]])
    found = network.lasts(actions, rewards, mask, first)
    assert found[0].tolist() == [[0, 1, 0, 3.5], [0, 0, 1, 5], [1, 0, 0, 6], [0, 1, 0, 7]]
    assert found[1].tolist() == [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 8]]


def test_a_reward_that_half_precision_cannot_store_is_clipped_alike_in_acting_and_learning() -> None:
    network = network_for((3,), "float32")
    states = np.zeros((1, *network.state_shape), np.float32)
    network.remember(states, np.array([1]), np.array([-1e9]))
    assert np.isfinite(states.astype(np.float16)).all()
    lasts = network.lasts(
        torch.ones(1, 2).long(), torch.full((1, 2), -1e9), torch.ones(1, 2).bool(), torch.zeros(1, ACTIONS + 1)
    )
    assert lasts[0, 1, -1] == states[0, -1] == np.finfo(np.float16).min
