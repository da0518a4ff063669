"""R2D2: Double DQN with a recurrent network, on prioritized batches of sequences.

As in Kapturowski et al. (2019, "Recurrent Experience Replay in Distributed Reinforcement Learning"), sequences begin
with a stored state and a burn-in, values are rescaled, and a sequence's priority combines the largest and the mean TD
error. Unlike in that paper, observations are the network's only input: it does not see the last action and reward.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from replay_client import sequence_priorities
from torch import Tensor, nn

from replay_agent.dqn import losses
from replay_agent.dqn.learner import DoubleDQNConfig, Learner, LossResult
from replay_agent.dqn.networks import ActingNetwork, Encoder, NetworkSpec, build_encoder, build_head

STATE_PARTS = 2
"""The state of an LSTM: its output h, then its cell state c."""


class RecurrentQNetwork(ActingNetwork):
    """A network that computes action values for sequences of observations."""

    def __init__(self, encoder: Encoder, lstm_units: int, head: nn.Module) -> None:
        super().__init__()
        self.inputs = encoder.inputs
        self.torso = encoder.torso
        self.lstm = nn.LSTM(encoder.features, lstm_units, batch_first=True)
        self.head = head
        self.state_shape = (STATE_PARTS, lstm_units)

    def forward(self, observations: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Process whole sequences.

        Args:
            observations: any[batch, positions, *observation_shape], at least one position.
            states: float32[batch, 2, lstm_units], before the first position.

        Returns:
            Action values, float32[batch, positions, actions], and the states after the last position.
        """
        outputs, after = self._recur(self._encode(observations), states)
        return self.head(outputs).squeeze(-1), after

    def act(self, observations: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """See `ActingNetwork.act`."""
        values, after = self(observations.unsqueeze(1), states)
        return values.squeeze(1), after

    def burn_in(self, observations: Tensor, states: Tensor, mask: Tensor) -> Tensor:
        """Return the states after the burn-in.

        The first positions may hold no step; those do not change the state.

        Args:
            observations: any[batch, positions, *observation_shape].
            states: float32[batch, 2, lstm_units], before the first step.
            mask: bool[batch, positions]: which positions hold a step.

        Returns:
            float32[batch, 2, lstm_units].
        """
        if not mask.shape[1]:
            return states
        encoded = self._encode(observations)
        for position, is_step in enumerate(mask.unbind(1)):
            _, after = self._recur(encoded[:, position : position + 1], states)
            states = torch.where(is_step[:, None, None], after, states)
        return states

    def _encode(self, observations: Tensor) -> Tensor:
        """Return the LSTM's inputs for all positions, float32[batch, positions, features]."""
        encoded: Tensor = self.torso(self.inputs(observations.flatten(0, 1)))
        return encoded.view(*observations.shape[:2], self.lstm.input_size)

    def _recur(self, encoded: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return the LSTM's outputs at all positions, and the states after the last one."""
        before = states.transpose(0, 1).contiguous()
        outputs, after = self.lstm(encoded, (before[:1], before[1:]))
        return outputs, torch.cat(after).transpose(0, 1)


def build_recurrent_network(spec: NetworkSpec) -> RecurrentQNetwork:
    """Build a network with weights from torch's global generator.

    Raises:
        ValueError: the spec has no hidden layer, or its image is too small.
    """
    encoder = build_encoder(spec, spec.hidden_sizes)
    return RecurrentQNetwork(encoder, spec.lstm_units, build_head(spec.lstm_units, spec))


def rescaled(values: Tensor, epsilon: float) -> Tensor:
    """Compress values, so that one learning rate suits small and large returns.

    This computes ``h(x) = sign(x) * (sqrt(abs(x) + 1) - 1) + epsilon * x``, rewritten to stay precise near 0.
    """
    return values / ((values.abs() + 1).sqrt() + 1) + epsilon * values


def unscaled(values: Tensor, epsilon: float) -> Tensor:
    """Invert `rescaled` (Pohlen et al., 2018, arXiv:1805.11593, proposition A.2), rewritten to stay precise near 0."""
    size = values.abs()
    root = (1 + 4 * epsilon * (size + 1 + epsilon)).sqrt()
    return values.sign() * ((2 * (size + 1 + epsilon) / (root + 1)) ** 2 - 1)


def n_step_targets(values: Tensor, rewards: Tensor, discounts: Tensor, mask: Tensor, n_step: int) -> Tensor:
    """Compute n-step targets. Near the end of an episode, they use as many steps as are left.

    Args:
        values: float32[batch, positions], values of the observations. The position after an episode's last step has the
            final observation.
        rewards: float32[batch, positions], reward of each step.
        discounts: float32[batch, positions], factor for the value of the observation after each step; 0 if that is a
            terminal state.
        mask: bool[batch, positions]: which positions hold a step.
        n_step: n, below the number of positions.

    Returns:
        The targets, float32[batch, positions - n]; meaningless at positions without a step.
    """
    targets = values
    for length in range(values.shape[1] - 1, values.shape[1] - 1 - n_step, -1):
        of_steps = rewards[:, :length] + discounts[:, :length] * targets[:, 1:]
        targets = torch.where(mask[:, :length], of_steps, values[:, :length])
    return targets


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

    algorithm = "r2d2"
    Config = R2D2Config
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
