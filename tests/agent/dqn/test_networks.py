from __future__ import annotations

import math

import pytest
import torch
from replay_agent.dqn.networks import (
    Bounds,
    ImageLayout,
    NetworkSpec,
    QNetwork,
    build_network,
    combine_dueling,
    image_layout,
    is_image,
)

FLOAT32_MAX = torch.finfo(torch.float32).max


def spec(shape: tuple[int, ...], dtype: str = "float32", *, dueling: bool = False) -> NetworkSpec:
    return NetworkSpec(shape, dtype, actions=3, hidden_sizes=(16, 8), dueling=dueling)


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((4,), "float32", False),
        ((128,), "uint8", False),
        ((5, 5), "float32", False),
        ((), "float64", False),
        ((84, 84), "uint8", True),
        ((10, 10, 4), "bool", True),
        ((4, 84, 84), "uint8", True),
    ],
)
def test_images_are_told_from_vectors(shape: tuple[int, ...], dtype: str, expected: bool) -> None:
    assert is_image(shape, dtype) is expected


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((4, 84, 84), ImageLayout(4, 84, 84, channels_last=False)),
        ((84, 84, 3), ImageLayout(3, 84, 84, channels_last=True)),
        ((210, 160, 3), ImageLayout(3, 210, 160, channels_last=True)),
        ((10, 10, 7), ImageLayout(7, 10, 10, channels_last=True)),
        ((10, 10, 10), ImageLayout(10, 10, 10, channels_last=True)),
        ((84, 84), ImageLayout(1, 84, 84, channels_last=True)),
    ],
)
def test_channels_are_told_from_pixels(shape: tuple[int, ...], layout: ImageLayout) -> None:
    assert image_layout(shape) == layout


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((4,), "float32"),
        ((), "float64"),
        ((5, 5), "float32"),
        ((10, 10, 4), "bool"),
        ((20, 16, 3), "uint8"),
        ((3, 3, 1), "float32"),
        ((36, 36), "uint8"),
        ((4, 84, 84), "uint8"),
        ((84, 84, 4), "uint8"),
    ],
)
def test_a_network_values_every_action_of_a_batch(shape: tuple[int, ...], dtype: str, dueling: bool) -> None:
    network = build_network(spec(shape, dtype, dueling=dueling))
    values = network(torch.ones((5, *shape), dtype=getattr(torch, dtype)))
    assert values.shape == (5, 3)
    assert values.dtype == torch.float32


def test_stacked_frames_get_the_layers_of_mnih_et_al() -> None:
    network = build_network(spec((4, 84, 84), "uint8"))
    shapes = [tuple(parameter.shape) for parameter in network.torso[0].parameters() if parameter.dim() == 4]  # type: ignore[index]
    assert shapes == [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3)]


def test_bytes_are_scaled_into_the_unit_interval() -> None:
    network = build_network(spec((2,), "uint8"))
    seen = network.inputs(torch.tensor([[0, 255]], dtype=torch.uint8))
    assert seen.tolist()[0] == pytest.approx([0.0, 1.0])


def bounded(low: tuple[float, ...], high: tuple[float, ...], dtype: str = "float32") -> QNetwork:
    return build_network(NetworkSpec((4,), dtype, 3, (16,), dueling=False, bounds=Bounds(low, high)))


def test_what_has_bounds_is_brought_into_minus_one_to_one() -> None:
    network = bounded((-1.2, -0.07, 0.0, 2.0), (0.6, 0.07, 10.0, 4.0))
    seen = network.inputs(torch.tensor([[-1.2, 0.07, 5.0, 3.5]]))
    assert seen.tolist()[0] == pytest.approx([-1.0, 1.0, 0.0, 0.5])


@pytest.mark.parametrize(
    ("low", "high"), [(-math.inf, math.inf), (0.0, math.inf), (-FLOAT32_MAX, FLOAT32_MAX), (3.0, 3.0)]
)
def test_what_has_no_bounds_stays_as_it_is(low: float, high: float) -> None:
    network = bounded((low, 0.0, 0.0, 0.0), (high, 1.0, 1.0, 1.0))
    seen = network.inputs(torch.tensor([[7.5, 0.0, 0.5, 1.0]]))
    assert seen.tolist()[0] == pytest.approx([7.5, -1.0, 0.0, 1.0])


def test_bytes_with_bounds_are_brought_into_these() -> None:
    seen = bounded((0.0,) * 4, (10.0,) * 4, "uint8").inputs(torch.tensor([[0, 5, 10, 10]], dtype=torch.uint8))
    assert seen.tolist()[0] == [-1.0, 0.0, 1.0, 1.0]


def test_bounds_are_no_weights() -> None:
    bare = build_network(NetworkSpec((4,), "float32", 3, (16,), dueling=False))
    assert bounded((0.0,) * 4, (10.0,) * 4).state_dict().keys() == bare.state_dict().keys()


def test_channels_come_to_the_front_with_every_pixel_in_its_place() -> None:
    image = torch.arange(10 * 8 * 3, dtype=torch.float32).reshape(1, 10, 8, 3)
    seen = build_network(spec((10, 8, 3))).inputs(image)
    assert seen.shape == (1, 3, 10, 8)
    assert seen[0, 2, 9, 4] == image[0, 9, 4, 2]


def test_dueling_values_are_the_value_plus_centred_advantages() -> None:
    combined = combine_dueling(torch.tensor([[[10.0]]]), torch.tensor([[[1.0], [2.0], [6.0]]]))[..., 0]
    assert combined.tolist() == [[8.0, 9.0, 13.0]]


def test_dueling_values_do_not_change_when_all_advantages_rise_together() -> None:
    value, advantages = torch.randn(4, 1, 2), torch.randn(4, 3, 2)
    torch.testing.assert_close(combine_dueling(value, advantages), combine_dueling(value, advantages + 7.0))
    torch.testing.assert_close(combine_dueling(value, advantages).mean(dim=1, keepdim=True), value)


def test_a_network_without_hidden_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="hidden_sizes needs at least one layer"):
        build_network(NetworkSpec((4,), "float32", 2, (), dueling=False))
