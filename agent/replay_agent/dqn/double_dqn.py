"""Double DQN: gradient steps on prioritized batches, and updates of the target network."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from replay_agent.dqn import losses
from replay_agent.dqn.figures import FiguresMeter
from replay_agent.dqn.networks import NetworkSpec, QNetwork, build_network


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
class TransitionBatch:
    """A batch on the learner's device.

    Attributes:
        obs: any[batch, *observation_shape].
        action: int64[batch].
        reward: float32[batch], discounted sums of rewards; see `Transition`.
        discount: float32[batch], factors for the values of ``next_obs``; see `Transition`.
        next_obs: any[batch, *observation_shape].
        weights: float32[batch], importance-sampling weights.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_obs: Tensor
    weights: Tensor


@dataclass(frozen=True)
class UpdateResult:
    """Result of a gradient step, on the learner's device; reading it waits for the step.

    Attributes:
        td_errors: float32[batch], absolute and unweighted: the new priorities.
        loss: float32[], weighted Huber loss.
        grad_norm: float32[], norm of the gradient before clipping.
        mean_value: float32[], mean value of the actions taken.
    """

    td_errors: Tensor
    loss: Tensor
    grad_norm: Tensor
    mean_value: Tensor


class DoubleDQN:
    """Online network, target network and optimizer."""

    def __init__(self, spec: NetworkSpec, config: DoubleDQNConfig, device: torch.device) -> None:
        """Build both networks with the same random weights, from torch's global generator."""
        self.spec = spec
        self.device = device
        self.updates = 0
        self.figures = FiguresMeter(device)
        """Figures of this learner's own gradient steps."""
        self._latest_obs: Tensor | None = None
        self._config = config
        self.online: QNetwork = build_network(spec).to(device)
        self.target: QNetwork = copy.deepcopy(self.online).requires_grad_(False)
        self.optimizer = torch.optim.Adam(
            self.online.parameters(), lr=config.learning_rate, eps=config.adam_epsilon, fused=True
        )

    def update(self, batch: TransitionBatch) -> UpdateResult:
        """Take a gradient step, and update the target network if due. This does not wait for the device."""
        targets = self._targets(batch)
        values = losses.values_of(self.online(batch.obs), batch.action)
        td_errors = targets - values
        loss = losses.weighted_huber_loss(td_errors, batch.weights, self._config.huber_delta)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        grad_norm = nn.utils.clip_grad_norm_(self.online.parameters(), self._config.max_grad_norm)
        self.optimizer.step()
        self.updates += 1
        self._latest_obs = batch.obs
        self._follow()
        result = UpdateResult(td_errors.detach().abs(), loss.detach(), grad_norm, values.detach().mean())
        self.figures.add(result.loss, result.grad_norm, result.mean_value)
        return result

    @torch.no_grad()
    def _targets(self, batch: TransitionBatch) -> Tensor:
        online = self.online(batch.next_obs) if self._config.double else None
        next_values = losses.bootstrap_values(self.target(batch.next_obs), online)
        return losses.td_targets(batch.reward, batch.discount, next_values)

    @torch.no_grad()
    def _follow(self) -> None:
        """If due, move the target network towards the online network by the fraction ``target_tau``; 1 copies it."""
        if self.updates % self._config.target_interval:
            return
        for target, online in zip(self.target.parameters(), self.online.parameters(), strict=True):
            target.lerp_(online, self._config.target_tau)

    @torch.no_grad()
    def latest_values(self) -> list[Tensor]:
        """Compute both networks' action values float32[batch, actions] of the last batch; empty before the first."""
        if self._latest_obs is None:
            return []
        return [network(self._latest_obs) for network in (self.online, self.target)]

    def weights(self) -> dict[str, Tensor]:
        """The online network's tensors, still on the learner's device."""
        return self.online.state_dict()
