"""Chooses the network to keep: greedy validation on seeds that neither training nor the last evaluation sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from replay_agent.evaluation import EvaluationResult
from replay_agent.networks import QNetwork

Evaluate = Callable[[QNetwork, Sequence[int]], EvaluationResult]


@dataclass(frozen=True)
class Validation:
    """What a validation found.

    Attributes:
        mean: mean return over the episodes played.
        episodes: how many those were.
        is_best: whether the network is the best so far.
        is_solved: whether it is as good as training was to make it.
    """

    mean: float
    episodes: int
    is_best: bool
    is_solved: bool


class NetworkSelector:
    """Keeps the network with the best mean return over all validation seeds.

    A network first plays a few episodes. Only one that is at least as good there as the best is over all of them
    plays the rest, and only the mean over all decides, so that luck with few episodes does not choose.
    """

    def __init__(
        self, evaluate: Evaluate, seeds: Sequence[int], screening_episodes: int, solved_return: float | None
    ) -> None:
        """Choose by given seeds.

        Args:
            evaluate: plays a network greedily on seeds.
            seeds: of all episodes that confirm a network.
            screening_episodes: how many of them are played first.
            solved_return: mean return at which a network is good enough; None for never.
        """
        self._evaluate = evaluate
        self._seeds = list(seeds)
        self._screening_episodes = min(screening_episodes, len(self._seeds))
        self._solved_return = solved_return
        self.best_mean: float | None = None
        """Mean return of the best network over all seeds, None before there is one."""
        self.best_weights: dict[str, Tensor] | None = None
        """Its tensors, on the CPU."""

    def validate(self, network: QNetwork) -> Validation:
        """Judge a network, and keep it if it is the best so far; of equal ones the later."""
        split = self._screening_episodes
        screening = self._evaluate(network, self._seeds[:split])
        if self.best_mean is not None and screening.mean < self.best_mean:
            return Validation(screening.mean, split, is_best=False, is_solved=False)
        returns = screening.returns
        if split < len(self._seeds):
            returns = np.concatenate([returns, self._evaluate(network, self._seeds[split:]).returns])
        mean = float(returns.mean())
        is_best = self.best_mean is None or mean >= self.best_mean
        if is_best:
            self.best_mean, self.best_weights = mean, copy_weights(network)
        is_solved = self._solved_return is not None and mean >= self._solved_return
        return Validation(mean, len(returns), is_best=is_best, is_solved=is_solved)


def copy_weights(network: QNetwork) -> dict[str, Tensor]:
    """A network's tensors as they are now, on the CPU."""
    return {name: tensor.detach().cpu().clone() for name, tensor in network.state_dict().items()}
