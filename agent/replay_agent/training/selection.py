"""Selects the best network: in each validation, the best network so far and the current one play the same episodes.

If both play the same seeds, lucky episodes cancel out (common random numbers: Glasserman and Yao, 1992, Management
Science 38(6), 884-908). Every validation uses new seeds: with fixed seeds, a network that was lucky once would remain
the best (selection bias: Cawley and Talbot, 2010, JMLR 11, 2079-2107). Training and final evaluation use other seeds.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from replay_agent.acting.evaluation import EvaluationResult
from replay_agent.dqn.networks import ActingNetwork

Evaluate = Callable[[ActingNetwork, Sequence[int]], EvaluationResult]
SeedsOf = Callable[[int], Sequence[int]]
"""Maps the number of a validation to the seeds of its episodes."""


@dataclass(frozen=True)
class Validation:
    """Result of a validation.

    Attributes:
        mean: mean return of the validated network.
        episodes: number of episodes that the network played.
        is_best: whether the network is the best so far.
        is_solved: whether the network played all episodes, and their mean return reached ``solved_return``.
    """

    mean: float
    episodes: int
    is_best: bool
    is_solved: bool


class NetworkSelector:
    """Keeps the best network so far.

    In a validation, the best network and the new one first play a few episodes. If the new network does at least as
    well, both play the remaining episodes, and the means over all episodes of the validation decide.
    """

    def __init__(
        self, evaluate: Evaluate, seeds_of: SeedsOf, screening_episodes: int, solved_return: float | None
    ) -> None:
        """Start without a best network.

        Args:
            evaluate: plays one greedy episode per seed with a network.
            seeds_of: returns the seeds of a validation, given its number from 0.
            screening_episodes: number of episodes that both networks play first.
            solved_return: mean return at which training ends; None: never.
        """
        self._evaluate = evaluate
        self._seeds_of = seeds_of
        self._screening_episodes = screening_episodes
        self._solved_return = solved_return
        self._validations = 0
        self._best_sum, self._best_episodes = 0.0, 0
        self.best_weights: dict[str, Tensor] | None = None
        """Tensors of the best network, on the CPU; None before the first validation."""

    @property
    def best_mean(self) -> float | None:
        """Mean return of the best network over all validation episodes that it played; None before the first."""
        return self._best_sum / self._best_episodes if self._best_episodes else None

    def validate(self, network: ActingNetwork) -> Validation:
        """Validate a network, and keep it if it is at least as good as the best so far."""
        seeds = list(self._seeds_of(self._validations))
        self._validations += 1
        best = self._network_of_best(network)
        returns, best_returns = np.empty(0), np.empty(0)
        is_best = True
        for part in (seeds[: self._screening_episodes], seeds[self._screening_episodes :]):
            if not part or not is_best:
                break
            returns = np.concatenate([returns, self._evaluate(network, part).returns])
            if best is not None:
                best_returns = np.concatenate([best_returns, self._evaluate(best, part).returns])
                is_best = returns.mean() >= best_returns.mean()
        mean, is_whole = float(returns.mean()), len(returns) == len(seeds)
        if is_best:
            self.best_weights = copy_weights(network)
            self._best_sum, self._best_episodes = 0.0, 0
        played = returns if is_best else best_returns
        self._best_sum += float(played.sum())
        self._best_episodes += len(played)
        is_solved = is_whole and self._solved_return is not None and mean >= self._solved_return
        return Validation(mean, len(returns), is_best=is_best, is_solved=is_solved)

    def to_json(self) -> dict[str, Any]:
        """Return the state without the tensors, as JSON values."""
        return {"validations": self._validations, "best_sum": self._best_sum, "best_episodes": self._best_episodes}

    def restore(self, values: Mapping[str, Any], best_weights: dict[str, Tensor] | None) -> None:
        """Restore the state from `to_json`, and the `best_weights` that were saved with it."""
        self._validations = values["validations"]
        self._best_sum, self._best_episodes = values["best_sum"], values["best_episodes"]
        self.best_weights = best_weights

    def _network_of_best(self, like: ActingNetwork) -> ActingNetwork | None:
        """Return the best network, which has the same architecture as ``like``; None before the first validation."""
        if self.best_weights is None:
            return None
        best = copy.deepcopy(like)
        best.load_state_dict(self.best_weights)
        return best


def copy_weights(network: ActingNetwork) -> dict[str, Tensor]:
    """Copy a network's tensors to the CPU."""
    return {name: tensor.detach().cpu().clone() for name, tensor in network.state_dict().items()}
