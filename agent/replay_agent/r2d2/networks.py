"""A recurrent Q-network: an LSTM between the encoder and the head of a Q-network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

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
        return self.head(outputs), after

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
