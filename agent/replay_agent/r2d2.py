"""R2D2: Double DQN with a recurrent network, on prioritized batches of sequences.

As in Kapturowski et al. (2019, "Recurrent Experience Replay in Distributed Reinforcement Learning"), sequences begin
with a stored state and a burn-in, values are rescaled, and a sequence's priority combines the largest and the mean TD
error. The network's inputs are the observation and the last action and reward. All positions of a sequence are encoded
at once; no gradient reaches into the burn-in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from replay_client import sequence_priorities
from torch import Tensor, nn
from torch.nn import functional

from replay_agent.dqn import losses
from replay_agent.dqn.learner import DoubleDQNConfig, Learner, LossResult
from replay_agent.dqn.networks import ActingNetwork, Encoder, NetworkSpec, build_encoder, build_head

_LARGEST_REWARD = 65_504.0
"""Magnitude to which the rewards that a network sees are clipped: the largest number that float16 can store."""


def state_size(lstm_units: int, actions: int) -> int:
    """Return the size of a network's state: the LSTM's output, its cell state, the last action, and its reward."""
    return 2 * lstm_units + actions + 1


class RecurrentQNetwork(ActingNetwork):
    """A network that computes action values for sequences of observations."""

    def __init__(self, encoder: Encoder, spec: NetworkSpec, head: nn.Module) -> None:
        super().__init__()
        lstm_units, actions = spec.lstm_units, spec.actions
        self.inputs = encoder.inputs
        self.torso = encoder.torso
        self.lstm = nn.LSTM(encoder.features + actions + 1, lstm_units, batch_first=True)
        self.head = head
        self.state_shape = (state_size(lstm_units, actions),)
        self._units = lstm_units
        self._actions = actions
        self._feeds_last = spec.feeds_last

    def forward(self, observations: Tensor, lasts: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Process whole sequences.

        Args:
            observations: any[batch, positions, *observation_shape], at least one position.
            lasts: float32[batch, positions, actions + 1], the action before each position, one-hot, and its reward.
            states: float32[batch, 2, lstm_units], the LSTM's output and cell state before the first position.

        Returns:
            Action values, float32[batch, positions, actions], and the LSTM's states after the last position.
        """
        outputs, after = self._recur(self._encode(observations, lasts), states)
        return self.head(outputs).squeeze(-1), after

    def act(self, observations: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """See `ActingNetwork.act`."""
        of_lstm, lasts = self.parts(states)
        values, after = self(observations.unsqueeze(1), lasts.unsqueeze(1), of_lstm)
        return values.squeeze(1), torch.cat([after.flatten(1), torch.zeros_like(lasts)], dim=1)

    def remember(self, states: NDArray[np.float32], actions: NDArray[np.int64], rewards: NDArray[np.float64]) -> None:
        """See `ActingNetwork.remember`."""
        if self._feeds_last:
            states[np.arange(len(states)), 2 * self._units + actions] = 1.0
            states[:, -1] = rewards.clip(-_LARGEST_REWARD, _LARGEST_REWARD)

    def parts(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Split states into those of the LSTM, float32[batch, 2, lstm_units], and ``lasts``, see `forward`."""
        of_lstm, lasts = states[:, : 2 * self._units], states[:, 2 * self._units :]
        return of_lstm.reshape(-1, 2, self._units), lasts

    def lasts(self, actions: Tensor, rewards: Tensor, mask: Tensor, first: Tensor) -> Tensor:
        """Return the last actions and rewards at the positions of sequences, see `forward`; zeros if they are not fed.

        Args:
            actions: int64[batch, positions].
            rewards: float32[batch, positions].
            mask: bool[batch, positions]: which positions hold a step.
            first: float32[batch, actions + 1], the last action and reward before the first step.
        """
        clipped = rewards.clamp(-_LARGEST_REWARD, _LARGEST_REWARD).unsqueeze(-1)
        taken = torch.cat([functional.one_hot(actions, self._actions), clipped], dim=-1)
        lasts = functional.pad((taken * mask.unsqueeze(-1) * self._feeds_last)[:, :-1], (0, 0, 1, 0))
        is_first = mask & (mask.cumsum(dim=1) == 1)
        return torch.where(is_first.unsqueeze(-1), first.unsqueeze(1), lasts)

    def after_burn_in(self, observations: Tensor, lasts: Tensor, states: Tensor, mask: Tensor) -> Tensor:
        """Run the burn-in without gradients, and return the action values at the positions after it.

        The other arguments are those of `forward`. The first positions of the burn-in may hold no step, where ``mask``
        bool[batch, burn_in] is false; those do not change the state.
        """
        encoded = self._encode(observations, lasts)
        with torch.no_grad():
            for position, is_step in enumerate(mask.unbind(1)):
                _, after = self._recur(encoded[:, position : position + 1], states)
                states = torch.where(is_step[:, None, None], after, states)
        outputs, _ = self._recur(encoded[:, mask.shape[1] :], states)
        values: Tensor = self.head(outputs).squeeze(-1)
        return values

    def _encode(self, observations: Tensor, lasts: Tensor) -> Tensor:
        """Return the LSTM's inputs for all positions, float32[batch, positions, features + actions + 1]."""
        encoded: Tensor = self.torso(self.inputs(observations.flatten(0, 1)))
        return torch.cat([encoded.view(*observations.shape[:2], -1), lasts], dim=-1)

    def _recur(self, encoded: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return the LSTM's outputs at all positions, and the states after the last one."""
        before = states.transpose(0, 1).contiguous()
        outputs, after = self.lstm(encoded, (before[:1], before[1:]))
        return outputs, torch.cat(after).transpose(0, 1)


def build_recurrent_network(spec: NetworkSpec) -> RecurrentQNetwork:
    """Build a network with weights from torch's global generator. The errors are those of `build_network`."""
    encoder = build_encoder(spec, spec.hidden_sizes)
    return RecurrentQNetwork(encoder, spec, build_head(spec.lstm_units, spec))


def rescaled(values: Tensor, epsilon: float) -> Tensor:
    """Compress values, so that a single learning rate suits small and large returns.

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
        state: float32[batch, state_size], state of the actor's network before the first step; see `state_size`.
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
        states, first = network.parts(batch.state)
        lasts = network.lasts(batch.action, batch.reward, batch.mask, first)
        return network.after_burn_in(batch.obs, lasts, states, batch.mask[:, : self._config.burn_in])

    @torch.no_grad()
    def _targets(self, batch: SequenceBatch, online: Tensor) -> Tensor:
        """Compute the rescaled targets of the steps to learn from, float32[batch, sequence_length]."""
        config = self._config
        next_values = losses.bootstrap_values(self.values(self.target, batch), online if config.double else None)
        reward, discount, mask = (part[:, config.burn_in :] for part in (batch.reward, batch.discount, batch.mask))
        unscaled_values = unscaled(next_values, config.rescaling_epsilon)
        targets = n_step_targets(unscaled_values, reward, discount, mask, config.n_step)
        return rescaled(targets, config.rescaling_epsilon)
