from __future__ import annotations

import pytest
import torch
from replay_agent.dqn.networks import NetworkSpec
from replay_agent.r2d2 import RecurrentQNetwork, build_recurrent_network
from torch import Tensor

UNITS = 5
SHAPES = [((3,), "float32"), ((10, 10, 4), "uint8"), ((4, 36, 36), "uint8")]


def network_for(shape: tuple[int, ...], dtype: str, *, dueling: bool = False) -> RecurrentQNetwork:
    torch.manual_seed(2)
    return build_recurrent_network(NetworkSpec(shape, dtype, 3, (8,), dueling, lstm_units=UNITS))


def observations(batch: int, places: int, shape: tuple[int, ...], dtype: str) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    values = torch.rand(batch, places, *shape, generator=generator)
    return values if dtype == "float32" else (values * 255).to(torch.uint8)


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize(("shape", "dtype"), SHAPES)
@torch.no_grad()
def test_a_sequence_is_the_same_at_once_as_step_by_step(shape: tuple[int, ...], dtype: str, dueling: bool) -> None:
    network, seen = network_for(shape, dtype, dueling=dueling), observations(2, 6, shape, dtype)
    states = torch.zeros(2, *network.state_shape)
    together, last = network(seen, states)
    assert together.shape == (2, 6, 3)
    for place in range(6):
        values, states = network.act(seen[:, place], states)
        torch.testing.assert_close(values, together[:, place])
    torch.testing.assert_close(states, last)


@torch.no_grad()
def test_places_without_a_step_leave_the_state_as_it_is() -> None:
    network, seen = network_for((3,), "float32"), observations(2, 4, (3,), "float32")
    mask = torch.tensor([[False, False, True, True], [True, True, True, True]])
    states = torch.randn(2, *network.state_shape)
    burned = network.burn_in(seen, states, mask)
    torch.testing.assert_close(burned[:1], network(seen[:1, 2:], states[:1])[1])
    torch.testing.assert_close(burned[1:], network(seen[1:], states[1:])[1])
    assert torch.equal(network.burn_in(seen[:, :0], states, mask[:, :0]), states)


@torch.no_grad()
def test_all_observations_of_a_burn_in_are_encoded_at_once() -> None:
    network, seen = network_for((3,), "float32"), observations(2, 6, (3,), "float32")
    encoded = []
    network.torso.register_forward_hook(lambda *call: encoded.append(len(call[-1])))
    network.burn_in(seen, torch.zeros(2, *network.state_shape), torch.ones(2, 6, dtype=torch.bool))
    assert encoded == [12]


@torch.no_grad()
def test_the_network_remembers_what_it_saw() -> None:
    network, seen = network_for((3,), "float32"), observations(1, 4, (3,), "float32")
    states = torch.zeros(1, *network.state_shape)
    other = seen.clone()
    other[:, 0] += 1.0
    assert not torch.allclose(network(seen, states)[0][:, -1], network(other, states)[0][:, -1])
