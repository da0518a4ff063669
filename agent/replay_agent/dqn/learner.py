"""The base class of all algorithms: takes gradient steps on prioritized batches, and updates the target network."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from replay_agent.dqn.figures import FiguresMeter
from replay_agent.dqn.networks import ActingNetwork, NetworkSpec

Network = TypeVar("Network", bound=ActingNetwork)
BatchT = TypeVar("BatchT")


@dataclass(frozen=True)
class DoubleDQNConfig:
    """Hyperparameters; see the settings with the same names."""

    learning_rate: float
    adam_epsilon: float = 1e-8
    max_grad_norm: float = 10.0
    huber_delta: float = 1.0
    double: bool = True
    target_interval: int = 1
    target_tau: float = 0.005


@dataclass(frozen=True)
class UpdateResult:
    """Result of a gradient step, on the learner's device; reading it waits for the step.

    Attributes:
        priorities: float32[batch], the new priorities, computed from absolute, unweighted TD errors before the step.
        loss: float32[], weighted Huber loss.
        grad_norm: float32[], norm of the gradient before clipping.
        mean_value: float32[], mean value of the actions taken.
    """

    priorities: Tensor
    loss: Tensor
    grad_norm: Tensor
    mean_value: Tensor


class LossResult(NamedTuple):
    """The loss of a batch, and other results that carry no gradient. `UpdateResult` describes the fields."""

    loss: Tensor
    priorities: Tensor
    mean_value: Tensor


class Learner(ABC, Generic[Network, BatchT]):
    """Online network, target network and optimizer."""

    def __init__(self, spec: NetworkSpec, online: Network, config: DoubleDQNConfig, device: torch.device) -> None:
        """Move the network to the device, and copy it as the target network."""
        self.spec = spec
        self.device = device
        self.updates = 0
        self.figures = FiguresMeter(device)
        """Figures of this learner's own gradient steps."""
        self._latest: BatchT | None = None
        self._config = config
        self.online: Network = online.to(device)
        self.target: Network = copy.deepcopy(self.online).requires_grad_(False)
        self.optimizer = torch.optim.Adam(
            self.online.parameters(), lr=config.learning_rate, eps=config.adam_epsilon, fused=True
        )

    @abstractmethod
    def compute_loss(self, batch: BatchT) -> LossResult:
        """Compute the loss and the priorities of a batch."""

    @abstractmethod
    def values(self, network: Network, batch: BatchT) -> Tensor:
        """Compute the action values of a batch's observations, float32[..., actions]."""

    def update(self, batch: BatchT) -> UpdateResult:
        """Take a gradient step, and update the target network if due. This does not wait for the device."""
        computed = self.compute_loss(batch)
        self.optimizer.zero_grad(set_to_none=True)
        computed.loss.backward()  # type: ignore[no-untyped-call]
        grad_norm = nn.utils.clip_grad_norm_(self.online.parameters(), self._config.max_grad_norm)
        self.optimizer.step()
        self.updates += 1
        self._latest = batch
        self._follow()
        result = UpdateResult(computed.priorities, computed.loss.detach(), grad_norm, computed.mean_value)
        self.figures.add(result.loss, result.grad_norm, result.mean_value)
        return result

    @torch.no_grad()
    def _follow(self) -> None:
        """If due, move the target network toward the online network by the fraction ``target_tau``; 1 copies it.

        Buffers, such as the running statistics of a batch normalization, are averages already, so they are copied.
        """
        if self.updates % self._config.target_interval:
            return
        for target, online in zip(self.target.parameters(), self.online.parameters(), strict=True):
            target.lerp_(online, self._config.target_tau)
        for old, new in zip(self.target.buffers(), self.online.buffers(), strict=True):
            old.copy_(new)

    @torch.no_grad()
    def latest_values(self) -> list[Tensor]:
        """Compute the action values of both networks for the last batch. The list is empty before the first batch."""
        if self._latest is None:
            return []
        return [self.values(network, self._latest) for network in (self.online, self.target)]

    def weights(self) -> dict[str, Tensor]:
        """Return the online network's tensors, still on the learner's device."""
        return self.online.state_dict()
