"""A small network for Atari games, which trains on one core."""

from __future__ import annotations

from replay_agent.dqn.networks import NetworkSpec, PlainInput, image_layout
from torch import nn


def small_network(spec: NetworkSpec) -> nn.Module:
    """Build the network of data-efficient Rainbow (van Hasselt et al., 2019, arXiv:1906.05243, appendix D).

    It has two convolutions of 5x5 pixels with stride 5, and one hidden layer of 256 units. A gradient step takes about
    a quarter of the time that the network of Mnih et al. (2015) needs.
    """
    layout = image_layout(spec.observation_shape)
    return nn.Sequential(
        PlainInput(spec.observation_dtype, layout),
        nn.Conv2d(layout.channels, 32, kernel_size=5, stride=5), nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=5, stride=5), nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(256), nn.ReLU(),
        nn.Linear(256, spec.actions),
    )  # fmt: skip
