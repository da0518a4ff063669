"""R2D2: Double DQN with a recurrent network, on prioritized batches of sequences.

As in Kapturowski et al. (2019, "Recurrent Experience Replay in Distributed Reinforcement Learning"), sequences begin
with a stored state and a burn-in, values are rescaled, and a sequence's priority combines the largest and the mean TD
error. Unlike in that paper, observations are the network's only input: it does not see the last action and reward.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from replay_client import sequence_priorities
from torch import Tensor

from replay_agent.dqn import losses
from replay_agent.dqn.learner import DoubleDQNConfig, Learner, LossResult
from replay_agent.dqn.networks import NetworkSpec
from replay_agent.r2d2.losses import n_step_targets, rescaled, unscaled
from replay_agent.r2d2.networks import RecurrentQNetwork, build_recurrent_network


@dataclass(frozen=True, kw_only=True)
class R2D2Config(DoubleDQNConfig):
    """Hyperparameters; see the settings with the same names."""

    n_step: int
    burn_in: int
    sequence_length: int
    eta: float
    rescaling_epsilon: float


@dataclass(frozen=True)
class SequenceBatch:
    """A batch of sequences on the learner's device, each with ``burn_in + sequence_length + n_step`` positions.

    Attributes:
        obs: any[batch, positions, *observation_shape].
        action: int64[batch, positions].
        reward: float32[batch, positions].
        discount: float32[batch, positions], factors for the values of the next observations.
        mask: bool[batch, positions]: which positions hold a step.
        state: float32[batch, 2, lstm_units], state of the actor's network before the first step.
        weights: float32[batch], importance-sampling weights.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    mask: Tensor
    state: Tensor
    weights: Tensor


class R2D2(Learner[RecurrentQNetwork, SequenceBatch]):
    """Learns by R2D2. Values and TD errors are rescaled."""

    _config: R2D2Config

    def __init__(self, spec: NetworkSpec, config: R2D2Config, device: torch.device) -> None:
        """Build the online and the target network with the same random weights, from torch's global generator."""
        super().__init__(spec, build_recurrent_network(spec), config, device)

    def compute_loss(self, batch: SequenceBatch) -> LossResult:
        """See `Learner.compute_loss`."""
        config = self._config
        q_values = self.values(self.online, batch)
        targets = self._targets(batch, q_values.detach())
        learned = slice(config.burn_in, config.burn_in + config.sequence_length)
        mask = batch.mask[:, learned]
        values = losses.values_of(q_values[:, : config.sequence_length], batch.action[:, learned])
        td_errors = targets - values
        loss = losses.weighted_huber_loss(td_errors, batch.weights.unsqueeze(1) * mask, config.huber_delta)
        returns = unscaled(values.detach(), config.rescaling_epsilon)
        return LossResult(loss, sequence_priorities(td_errors, mask, config.eta), (returns * mask).sum() / mask.sum())

    def values(self, network: RecurrentQNetwork, batch: SequenceBatch) -> Tensor:
        """Run the burn-in, and compute rescaled action values: float32[batch, sequence_length + n_step, actions]."""
        before = self._config.burn_in
        with torch.no_grad():
            states = network.burn_in(batch.obs[:, :before], batch.state, batch.mask[:, :before])
        values: Tensor = network(batch.obs[:, before:], states)[0]
        return values

    @torch.no_grad()
    def _targets(self, batch: SequenceBatch, online: Tensor) -> Tensor:
        """Compute the rescaled targets of the steps to learn from, float32[batch, sequence_length]."""
        config = self._config
        next_values = losses.bootstrap_values(self.values(self.target, batch), online if config.double else None)
        reward, discount, mask = (part[:, config.burn_in :] for part in (batch.reward, batch.discount, batch.mask))
        unscaled_values = unscaled(next_values, config.rescaling_epsilon)
        targets = n_step_targets(unscaled_values, reward, discount, mask, config.n_step)
        return rescaled(targets, config.rescaling_epsilon)
