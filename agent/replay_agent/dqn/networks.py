"""Q-networks: an MLP for vectors, a convolutional network for images, with heads for values or for distributions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from replay_agent.dqn.noisy import NoisyLinear
from replay_agent.own_parts import OwnPartError, find

UINT8_MAX = 255.0
IMAGE_RANK = 3
GRAYSCALE_RANK = 2
# Smallest image side for the three layers of Mnih et al. (2015).
MIN_NATURE_SIDE = 36
# If both sides of an image have at least this size, the small torso halves them, to keep the first dense layer small.
MIN_STRIDED_SIDE = 16
DEFAULT_VECTOR_HIDDEN_SIZES = (128, 128)
DEFAULT_IMAGE_HIDDEN_SIZES = (512,)

Dense = Callable[[int, int], nn.Module]
"""Makes a dense layer from its numbers of inputs and outputs."""


@dataclass(frozen=True)
class Bounds:
    """Bounds of the elements of a flattened observation; infinite if unbounded.

    Attributes:
        low: lower bound of each element.
        high: upper bound of each element.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class NetworkSpec:
    """Everything needed to build the same network in another process.

    Attributes:
        observation_shape: shape of one observation, without a batch axis.
        observation_dtype: NumPy name of the observation's dtype, such as ``"float32"`` or ``"uint8"``.
        actions: number of discrete actions.
        hidden_sizes: units of each dense hidden layer.
        dueling: whether the head has separate value and advantage streams.
        bounds: bounds used to scale vectors to [-1, 1]; None: no scaling.
        lstm_units: units of the LSTM of a recurrent network; 0: the network is not recurrent.
        feeds_last: whether a recurrent network sees the last action and its reward.
        own: name of a function or class that makes the network from this spec, as ``module:name``; empty: there is
            none.
        atoms: atoms of the distribution of returns that the network computes for each action; 0: it computes values.
        value_range: return of the first and of the last atom.
        noisy_sigma: initial noise of noisy dense layers; 0: they are not noisy.
    """

    observation_shape: tuple[int, ...]
    observation_dtype: str
    actions: int
    hidden_sizes: tuple[int, ...]
    dueling: bool
    bounds: Bounds | None = None
    lstm_units: int = 0
    feeds_last: bool = True
    own: str = ""
    atoms: int = 0
    value_range: tuple[float, float] = (0.0, 0.0)
    noisy_sigma: float = 0.0


class ImageLayout(NamedTuple):
    """Layout of an image observation; height and width in pixels."""

    channels: int
    height: int
    width: int
    channels_last: bool


def is_image(shape: Sequence[int], dtype: str) -> bool:
    """Whether an observation is an image, with 3 axes, or 2 axes and dtype uint8. Everything else is a vector."""
    return len(shape) == IMAGE_RANK or (len(shape) == GRAYSCALE_RANK and np.dtype(dtype) == np.uint8)


def default_hidden_sizes(shape: Sequence[int], dtype: str) -> tuple[int, ...]:
    """Return the default sizes of the dense layers."""
    return DEFAULT_IMAGE_HIDDEN_SIZES if is_image(shape, dtype) else DEFAULT_VECTOR_HIDDEN_SIZES


def image_layout(shape: Sequence[int]) -> ImageLayout:
    """Find the height, width and channels of an image.

    If there are three axes, the last one holds the channels, unless the first one is smaller. For example, stacked
    frames (4, 84, 84) are channels-first; RGB images (84, 84, 3) and MinAtar's (10, 10, 4) are channels-last. A
    grayscale image (84, 84) has one channel.
    """
    if len(shape) == GRAYSCALE_RANK:
        return ImageLayout(channels=1, height=shape[0], width=shape[1], channels_last=True)
    first, middle, last = shape
    if last <= first:
        return ImageLayout(channels=last, height=first, width=middle, channels_last=True)
    return ImageLayout(channels=first, height=middle, width=last, channels_last=False)


class PlainInput(nn.Module):
    """Converts observations to float32, scales uint8 to [0, 1], and moves the channels of images to the front."""

    def __init__(self, dtype: str, layout: ImageLayout | None = None) -> None:
        super().__init__()
        self._is_scaled = np.dtype(dtype) == np.uint8
        self._layout = layout

    def forward(self, observations: Tensor) -> Tensor:
        """Return float32[batch, features] or, with a layout, float32[batch, channels, height, width]."""
        values, layout = observations.to(torch.float32), self._layout
        if self._is_scaled:
            # In place, which no caller can notice: `values` is a copy. A second array of this size would cost more
            # than the rest of the conversion.
            values.mul_(1.0 / UINT8_MAX)
        if layout is None:
            return values.reshape(len(values), -1)
        if layout.channels_last:
            return values.reshape(-1, layout.height, layout.width, layout.channels).permute(0, 3, 1, 2)
        return values.reshape(-1, layout.channels, layout.height, layout.width)


class BoundedInput(nn.Module):
    """Flattens observations and scales bounded elements to [-1, 1]: any[batch, ...] to float32[batch, features]."""

    center: Tensor
    half_width: Tensor

    def __init__(self, bounds: Bounds) -> None:
        super().__init__()
        low, high = torch.tensor(bounds.low, dtype=torch.float64), torch.tensor(bounds.high, dtype=torch.float64)
        # Unbounded spaces use infinity or the largest float32 as bounds; neither allows scaling.
        is_bounded = (high > low) & (high - low < torch.finfo(torch.float32).max)
        center = torch.where(is_bounded, (low + high) / 2, 0.0)
        half_width = torch.where(is_bounded, (high - low) / 2, 1.0)
        # These are not learned, so exclude them from the weights.
        self.register_buffer("center", center.to(torch.float32), persistent=False)
        self.register_buffer("half_width", half_width.to(torch.float32), persistent=False)

    def forward(self, observations: Tensor) -> Tensor:
        """Return float32[batch, features]."""
        values = observations.to(torch.float32).reshape(len(observations), -1)
        return (values - self.center) / self.half_width


class DuelingHead(nn.Module):
    """A head with separate streams: Q = value + advantage - mean advantage (Wang et al., 2016, arXiv:1511.06581).

    With several outputs for each action, the streams are combined output by output (Hessel et al., 2018,
    arXiv:1710.02298).
    """

    def __init__(self, features: int, hidden: int, actions: int, outputs: int, dense: Dense) -> None:
        super().__init__()
        self.value = nn.Sequential(dense(features, hidden), nn.ReLU(), *_values(dense, hidden, 1, outputs))
        self.advantage = nn.Sequential(dense(features, hidden), nn.ReLU(), *_values(dense, hidden, actions, outputs))

    def forward(self, features: Tensor) -> Tensor:
        """Return float32[..., actions, outputs] for float32[..., features]."""
        return combine_dueling(self.value(features), self.advantage(features))


def combine_dueling(value: Tensor, advantages: Tensor) -> Tensor:
    """Add values float32[..., 1, outputs] to advantages float32[..., actions, outputs], less the mean advantage."""
    return value + advantages - advantages.mean(dim=-2, keepdim=True)


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Put a network into evaluation mode for the block."""
    was_training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(was_training)


class ActingNetwork(nn.Module, ABC):
    """A network that computes action values step by step.

    A recurrent network has a state, which the caller passes from one step of an episode to the next, after `remember`.
    At the beginning of an episode, the state is zero.
    """

    state_shape: tuple[int, ...] = (0,)
    """Shape of the state. The state of a network that is not recurrent has no elements."""

    @abstractmethod
    def act(self, observations: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Take one step in each of several episodes.

        Args:
            observations: any[episodes, *observation_shape].
            states: float32[episodes, *state_shape], before the step.

        Returns:
            Action values, float32[episodes, actions], and the states after the step.
        """

    def remember(self, states: NDArray[np.float32], actions: NDArray[np.int64], rewards: NDArray[np.float64]) -> None:
        """Write the actions taken, and their rewards, into the states after the step, if the network looks at them.

        Args:
            states: float32[episodes, *state_shape], changed in place.
            actions: int64[episodes].
            rewards: float64[episodes], as the learner sees them.
        """


class QNetwork(ActingNetwork):
    """A network that computes action values for a batch of observations."""

    def __init__(self, inputs: nn.Module, torso: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.inputs = inputs
        self.torso = torso
        self.head = head

    def forward(self, observations: Tensor) -> Tensor:
        """Return float32[batch, actions] for observations of any dtype, [batch, *observation_shape]."""
        values: Tensor = self.head(self.torso(self.inputs(observations))).squeeze(-1)
        return values

    def act(self, observations: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """See `ActingNetwork.act`."""
        return self(observations), states


class DistributionalQNetwork(QNetwork):
    """A network that computes a distribution of returns for each action, as in C51 (Bellemare et al., 2017)."""

    support: Tensor
    """float32[atoms], the returns of the atoms."""

    def __init__(self, inputs: nn.Module, torso: nn.Module, head: nn.Module, support: Tensor) -> None:
        super().__init__(inputs, torso, head)
        self.register_buffer("support", support, persistent=False)

    def forward(self, observations: Tensor) -> Tensor:
        """Return the logits of the atoms, float32[batch, actions, atoms]."""
        logits: Tensor = self.head(self.torso(self.inputs(observations)))
        return logits

    def act(self, observations: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """See `ActingNetwork.act`. The value of an action is its mean return."""
        return self(observations).softmax(dim=-1) @ self.support, states


class OwnNetwork(ActingNetwork):
    """A network of the user.

    It maps observations, any[batch, *observation_shape], to action values, float32[batch, actions]. If it computes
    something else, it has a method ``action_values`` for that.
    """

    def __init__(self, own: nn.Module) -> None:
        super().__init__()
        self.own = own

    def forward(self, observations: Tensor) -> Any:
        """Return what the network computes."""
        return self.own(observations)

    def act(self, observations: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """See `ActingNetwork.act`. The network is in evaluation mode: without dropout, with averages of statistics."""
        with evaluating(self.own):
            return getattr(self.own, "action_values", self.own)(observations), states


class Encoder(NamedTuple):
    """The layers before the head; `torso` returns float32[batch, features]."""

    inputs: nn.Module
    torso: nn.Module
    features: int


def own_or_usual_network(spec: NetworkSpec) -> ActingNetwork:
    """Build the network of the user, if the spec names one, or the usual one.

    The errors are those of `build_network`, or `OwnPartError` if the network of the user is not there, or does not fit.
    """
    return _build_own(spec) if spec.own else build_network(spec)


def build_network(spec: NetworkSpec) -> QNetwork:
    """Build a network with weights from torch's global generator.

    Raises:
        ValueError: the spec has no hidden layer, or its image is too small.
    """
    # With dueling, each stream of the head has its own last hidden layer.
    encoder = build_encoder(spec, spec.hidden_sizes[:-1] if spec.dueling else spec.hidden_sizes)
    layers = encoder.inputs, encoder.torso, build_head(encoder.features, spec)
    if not spec.atoms:
        return QNetwork(*layers)
    return DistributionalQNetwork(*layers, torch.linspace(*spec.value_range, spec.atoms))


def _build_own(spec: NetworkSpec) -> OwnNetwork:
    own = find(spec.own, "the network")(spec)
    if not isinstance(own, nn.Module):
        raise OwnPartError(f"expected a torch.nn.Module from the network {spec.own}, got {type(own).__name__}")
    network = OwnNetwork(own)
    example = torch.zeros(1, *spec.observation_shape, dtype=torch.from_numpy(np.zeros(1, spec.observation_dtype)).dtype)
    with torch.no_grad():
        values, _ = network.act(example, torch.zeros(1, 0))
    if not isinstance(values, Tensor) or values.shape != (1, spec.actions) or not values.is_floating_point():
        got = f"{values.dtype}{list(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise OwnPartError(
            f"expected the values of {spec.actions} actions from the network {spec.own}, float[1, {spec.actions}] for "
            f"one observation; got {got}. If it computes something else, give it a method action_values"
        )
    return network


def build_encoder(spec: NetworkSpec, hidden_sizes: Sequence[int]) -> Encoder:
    """Build the layers before the head, with dense layers of these sizes. Raises the same errors as `build_network`."""
    if not spec.hidden_sizes:
        raise ValueError("hidden_sizes needs at least one layer, for instance 128,128")
    if not is_image(spec.observation_shape, spec.observation_dtype):
        dense, features = _hidden(int(np.prod(spec.observation_shape)), hidden_sizes, dense_of(spec))
        inputs = BoundedInput(spec.bounds) if spec.bounds else PlainInput(spec.observation_dtype)
        return Encoder(inputs, dense, features)
    layout = image_layout(spec.observation_shape)
    convolutions = _convolutions(layout)
    with torch.no_grad():
        features = convolutions(torch.zeros(1, layout.channels, layout.height, layout.width)).shape[1]
    dense, features = _hidden(features, hidden_sizes, dense_of(spec))
    return Encoder(PlainInput(spec.observation_dtype, layout), nn.Sequential(convolutions, dense), features)


def build_head(features: int, spec: NetworkSpec) -> nn.Module:
    """Build the head, which computes float32[..., actions, outputs] from float32[..., features].

    An action has one output for each atom or, without atoms, its value.
    """
    outputs, dense = max(1, spec.atoms), dense_of(spec)
    if spec.dueling:
        return DuelingHead(features, spec.hidden_sizes[-1], spec.actions, outputs, dense)
    layer, by_action = _values(dense, features, spec.actions, outputs)
    return nn.Sequential(OrderedDict(layer=layer, by_action=by_action))


def dense_of(spec: NetworkSpec) -> Dense:
    """Return the class of the dense layers."""
    return partial(NoisyLinear, sigma=spec.noisy_sigma) if spec.noisy_sigma else nn.Linear


def _values(dense: Dense, features: int, actions: int, outputs: int) -> tuple[nn.Module, nn.Module]:
    """Return layers from float32[..., features] to float32[..., actions, outputs]."""
    return dense(features, actions * outputs), nn.Unflatten(-1, (actions, outputs))


def _convolutions(layout: ImageLayout) -> nn.Sequential:
    """Return the layers of Mnih et al. (2015, Methods) if the image is large enough, otherwise two 3x3 layers."""
    if min(layout.height, layout.width) >= MIN_NATURE_SIDE:
        return nn.Sequential(
            nn.Conv2d(layout.channels, 32, kernel_size=8, stride=4), nn.ReLU(),
            nn.Conv2d(32, 64, kernel_size=4, stride=2), nn.ReLU(),
            nn.Conv2d(64, 64, kernel_size=3, stride=1), nn.ReLU(),
            nn.Flatten(),
        )  # fmt: skip
    stride = 2 if min(layout.height, layout.width) >= MIN_STRIDED_SIDE else 1
    return nn.Sequential(
        nn.Conv2d(layout.channels, 16, kernel_size=3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1, stride=stride), nn.ReLU(),
        nn.Flatten(),
    )  # fmt: skip


def _hidden(features: int, hidden_sizes: Sequence[int], dense: Dense) -> tuple[nn.Sequential, int]:
    """Return dense layers and the size of the last one's output."""
    layers: list[nn.Module] = []
    for units in hidden_sizes:
        layers += [dense(features, units), nn.ReLU()]
        features = units
    return nn.Sequential(*layers), features
