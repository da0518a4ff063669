"""Algorithms of Stable-Baselines3 with prioritized replay."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from typing import Any, cast

import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from torch.nn import functional

from replay_client.draws import DEFAULT_BETA, checked_beta
from replay_client.errors import InvalidArgumentError
from replay_client.sb3.buffer import ServiceReplayBuffer, ServiceSamples


class PrioritizedReplay(OffPolicyAlgorithm):
    """The base class of prioritized algorithms: it draws by priority, weights the losses, and updates priorities.

    During `learn`, beta increases linearly (Schaul et al. 2016, section 3.4).
    """

    max_grad_norm: Any  # a number; QR-DQN also allows None

    def __init__(self, *args: Any, beta_initial: float = DEFAULT_BETA, beta_final: float = 1.0, **kwargs: Any) -> None:
        """Create the algorithm. Its ``n_steps``, ``gamma`` and ``seed`` are also those of the table.

        Args:
            *args: positional arguments of the algorithm.
            beta_initial: exponent of the importance-sampling weights at the beginning of `learn`.
            beta_final: exponent of the weights at the end of `learn`.
            **kwargs: keyword arguments of the algorithm.

        Raises:
            InvalidArgumentError: a table does not support an option or a space; the message names it.
        """
        self.beta_initial = checked_beta(beta_initial)
        self.beta_final = checked_beta(beta_final)
        super().__init__(*args, **kwargs)

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Take gradient steps. Each draws a batch, minimizes the weighted losses, and updates the priorities."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        buffer = cast(ServiceReplayBuffer, self.replay_buffer)
        remaining = max(0.0, min(1.0, self._current_progress_remaining))
        buffer.beta = self.beta_final + (self.beta_initial - self.beta_final) * remaining
        losses = []
        for _ in range(gradient_steps):
            samples = buffer.sample(batch_size, env=self._vec_normalize_env)
            losses_of_rows, td_errors = self._losses(samples)
            buffer.update_priorities(samples, td_errors)
            loss = (samples.weights * losses_of_rows).mean()
            losses.append(loss.item())
            self.policy.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            if self.max_grad_norm is not None:
                torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", np.mean(losses))
        self.logger.record("train/beta", buffer.beta)

    @abstractmethod
    def _losses(self, samples: ServiceSamples) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the unweighted losses and the TD errors of samples, both float32[batch]."""

    def _setup_model(self) -> None:
        self.replay_buffer_class = self.replay_buffer_class or ServiceReplayBuffer
        if not issubclass(self.replay_buffer_class, ServiceReplayBuffer):
            name = self.replay_buffer_class.__name__
            raise InvalidArgumentError.of_field("replay_buffer_class", "ServiceReplayBuffer", name)
        own = {"n_steps": self.n_steps, "gamma": self.gamma, "seed": self.seed}
        given = self.replay_buffer_kwargs
        for name, value in (("gamma", self.gamma), ("n_steps", self.n_steps)):
            if given.get(name, value) != value and (name, value) != ("n_steps", 1):
                expected = f"{value}, as for the algorithm"
                raise InvalidArgumentError.of_field(f"replay_buffer_kwargs.{name}", expected, repr(given[name]))
        self.replay_buffer_kwargs = {**own, **given}
        with warnings.catch_warnings():  # SB3 warns that it passes n_steps only to its own buffers; `own` passes it
            warnings.filterwarnings("ignore", "`n_steps=")
            super()._setup_model()

    def _bootstrapped(self, samples: ServiceSamples, next_values: torch.Tensor) -> torch.Tensor:
        """Compute the targets ``reward + discount * next_value``, float32[batch, n]: n is 1 or the quantile count."""
        discounts = self.gamma if samples.discounts is None else samples.discounts
        return samples.rewards + (1 - samples.dones) * discounts * next_values


class PrioritizedDQN(PrioritizedReplay, DQN):
    """SB3's DQN with prioritized replay (Schaul et al. 2016, arXiv:1511.05952)."""

    def _losses(self, samples: ServiceSamples) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            next_values = self.q_net_target(samples.next_observations).max(dim=1, keepdim=True).values
            targets = self._bootstrapped(samples, next_values)[:, 0]
        values = self.q_net(samples.observations).gather(1, samples.actions.long())[:, 0]
        return functional.smooth_l1_loss(values, targets, reduction="none"), targets - values
