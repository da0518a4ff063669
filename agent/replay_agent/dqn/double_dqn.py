"""Double DQN on prioritized batches of n-step transitions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from replay_agent.dqn import losses
from replay_agent.dqn.learner import DoubleDQNConfig, Learner, LossResult
from replay_agent.dqn.networks import ActingNetwork, NetworkSpec, own_or_usual_network


@dataclass(frozen=True)
class TransitionBatch:
    """A batch on the learner's device.

    Attributes:
        obs: any[batch, *observation_shape].
        action: int64[batch].
        reward: float32[batch], discounted sums of the next k rewards; k is n, or less at the end of an episode.
        discount: float32[batch], factors for the values of ``next_obs``: ``gamma**k``, or 0 if the episode terminated.
        next_obs: any[batch, *observation_shape], the observations k steps later.
        weights: float32[batch], importance-sampling weights.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_obs: Tensor
    weights: Tensor


class DoubleDQN(Learner[ActingNetwork, TransitionBatch]):
    """Learns by Double DQN. Priorities are absolute TD errors.

    A subclass may compute another loss, and other priorities, by `compute_loss`.
    """

    algorithm = "dqn"

    def __init__(self, spec: NetworkSpec, config: DoubleDQNConfig, device: torch.device) -> None:
        """Build the online and the target network with the same random weights, from torch's global generator."""
        super().__init__(spec, own_or_usual_network(spec), config, device)

    def compute_loss(self, batch: TransitionBatch) -> LossResult:
        """See `Learner.compute_loss`."""
        targets = self._targets(batch)
        values = losses.values_of(self.online(batch.obs), batch.action)
        td_errors = targets - values
        loss = losses.weighted_huber_loss(td_errors, batch.weights, self._config.huber_delta)
        return LossResult(loss, td_errors.detach().abs(), values.detach().mean())

    def values(self, network: ActingNetwork, batch: TransitionBatch) -> Tensor:
        """Compute the action values of ``batch.obs``, float32[batch, actions]."""
        return self._action_values(network, batch.obs)

    def _action_values(self, network: ActingNetwork, observations: Tensor) -> Tensor:
        return network.act(observations, torch.zeros(len(observations), 0, device=self.device))[0]

    @torch.no_grad()
    def _targets(self, batch: TransitionBatch) -> Tensor:
        online = self.online(batch.next_obs) if self._config.double else None
        next_values = losses.bootstrap_values(self.target(batch.next_obs), online)
        return batch.reward + batch.discount * next_values
