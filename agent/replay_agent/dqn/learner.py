"""The base class of all algorithms: takes gradient steps on prioritized batches, measures them, updates the target."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Generic, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn

from replay_agent.atari_options import AtariOptions
from replay_agent.dqn.networks import ActingNetwork, NetworkSpec, evaluating
from replay_agent.dqn.saved_agents import SavedAgent, SavedAgentError, best_weights
from replay_agent.own_parts import name_of

DECAY = 0.99
"""Decay of the exponential means per gradient step."""
FIGURES = ("loss", "grad_norm", "mean_value")
FOLDED_STEPS = 256
"""Number of gradient steps after which pending figures are added to the means."""


@dataclass(frozen=True)
class Figures:
    """Smoothed figures of the gradient steps so far, see `UpdateResult`. A non-finite figure stays non-finite."""

    loss: float
    grad_norm: float
    mean_value: float


class FiguresMeter:
    """Computes bias-corrected exponential means of figures. Adding figures never waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._steps = 0
        self._waiting: list[Tensor] = []
        self._smoothed = torch.zeros(len(FIGURES), device=device)

    def add(self, loss: Tensor, grad_norm: Tensor, mean_value: Tensor) -> None:
        """Add the figures of a gradient step, each float32[]."""
        # Adding many steps to the means in one operation is nearly free per step.
        self._waiting += (loss, grad_norm, mean_value)
        self._steps += 1
        if len(self._waiting) >= FOLDED_STEPS * len(FIGURES):
            self._fold()

    def fetch(self) -> Figures | None:
        """Fetch the figures, waiting for the device once; None before the first step."""
        if not self._steps:
            return None
        self._fold()
        weight = 1 - DECAY**self._steps
        return Figures(*(value / weight for value in self._smoothed.tolist()))

    def _fold(self) -> None:
        """Add pending figures to the means, on the device."""
        if not self._waiting:
            return
        values = torch.stack(self._waiting).view(-1, len(FIGURES))
        self._waiting.clear()
        ages = torch.arange(len(values) - 1, -1, -1, device=self._device)
        weights = (1 - DECAY) * DECAY**ages
        self._smoothed = self._smoothed * DECAY ** len(values) + (weights.unsqueeze(1) * values).sum(0)


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

    algorithm: ClassVar[str]
    """Name in the settings."""
    Config: ClassVar[type[DoubleDQNConfig]] = DoubleDQNConfig
    """Class of the hyperparameters."""

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

    @classmethod
    def load(cls, run: str | Path, device: str | torch.device = "cpu") -> Self:
        """Load the best network of a run, as online and as target network, both in evaluation mode.

        Args:
            run: directory of the run. The environment's package is not needed.
            device: device of the networks.

        Raises:
            SavedAgentError: the directory is not that of a run of this algorithm and version.
            OwnPartError: the run has a network of its own, which is not on this machine.
        """
        agent = SavedAgent.read(Path(run))
        if agent.algorithm != cls.algorithm:
            raise SavedAgentError(f"expected a run with algorithm {cls.algorithm}, got {agent.algorithm} in {run}")
        learner = cls(agent.spec, cls.Config(**agent.config), torch.device(device))  # type: ignore[call-arg]
        weights = best_weights(Path(run))
        for network in (learner.online, learner.target):
            network.load_state_dict(weights)
            network.eval()
        return learner

    def saved(self, env_id: str, atari: AtariOptions, first_action: int, evaluation_epsilon: float) -> SavedAgent:
        """Return what `load` needs in addition to the weights."""
        own = name_of(type(self)) if type(self).__module__.partition(".")[0] != "replay_agent" else None
        return SavedAgent(
            env_id=env_id,
            atari=atari,
            first_action=first_action,
            evaluation_epsilon=evaluation_epsilon,
            algorithm=self.algorithm,
            learner=own,
            spec=self.spec,
            config=asdict(self._config),
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
        found = []
        for network in (self.online, self.target):
            with evaluating(network):  # which draws no noise: otherwise, a check would change the run
                found.append(self.values(network, self._latest))
        return found

    def weights(self) -> dict[str, Tensor]:
        """Return the online network's tensors, still on the learner's device."""
        return self.online.state_dict()
