"""Chooses the network to keep: the best one so far and a new one play the same episodes, new ones each time.

Both play the same seeds, so what an episode happens to bring to either cancels out (common random numbers: Glasserman
and Yao, 1992, Management Science 38(6), 884-908). The seeds are new in every validation, so a network that was lucky
once has to win again without its luck, where on fixed seeds it would stay the best for good (selection bias: Cawley and
Talbot, 2010, JMLR 11, 2079-2107). Neither training nor the last evaluation sees them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from replay_agent.acting.evaluation import EvaluationResult
from replay_agent.dqn.networks import QNetwork

Evaluate = Callable[[QNetwork, Sequence[int]], EvaluationResult]
SeedsOf = Callable[[int], Sequence[int]]
"""Seeds of all episodes of the validation of this number."""


@dataclass(frozen=True)
class Validation:
    """What a validation found.

    Attributes:
        mean: mean return of the new network over the episodes that it played.
        episodes: how many those were.
        is_best: whether the network is the best so far.
        is_solved: whether it is as good as training was to make it.
    """

    mean: float
    episodes: int
    is_best: bool
    is_solved: bool


class NetworkSelector:
    """Keeps the network that was at least as good as the best one before it on the same episodes.

    Both first play a few episodes. Only a new network that is at least as good there plays the rest, and only the means
    over all decide, so that luck with few episodes does not choose.
    """

    def __init__(
        self, evaluate: Evaluate, seeds_of: SeedsOf, screening_episodes: int, solved_return: float | None
    ) -> None:
        """Choose by given seeds.

        Args:
            evaluate: plays a network greedily on seeds.
            seeds_of: those of each validation, by its number from 0; different ones each time.
            screening_episodes: how many of them are played first.
            solved_return: mean return at which a network is good enough; None for never.
        """
        self._evaluate = evaluate
        self._seeds_of = seeds_of
        self._screening_episodes = screening_episodes
        self._solved_return = solved_return
        self._validations = 0
        self._best_network: QNetwork | None = None
        self._best_sum, self._best_episodes = 0.0, 0
        self.best_weights: dict[str, Tensor] | None = None
        """Tensors of the best network, on the CPU; None before there is one."""

    @property
    def best_mean(self) -> float | None:
        """Mean return of the best network over all episodes that it played, None before there is one."""
        return self._best_sum / self._best_episodes if self._best_episodes else None

    def validate(self, network: QNetwork) -> Validation:
        """Judge a network, and keep it if it is the best so far; of equal ones the later."""
        seeds = list(self._seeds_of(self._validations))
        self._validations += 1
        best = self._network_of_best(network)
        returns = np.empty(0)
        best_returns = np.empty(0)
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
            self._best_network = None
            self._best_sum, self._best_episodes = 0.0, 0
        self._note_best(returns if is_best else best_returns)
        is_solved = is_whole and self._solved_return is not None and mean >= self._solved_return
        return Validation(mean, len(returns), is_best=is_best, is_solved=is_solved)

    def to_json(self) -> dict[str, Any]:
        """All but the tensors, as JSON values."""
        return {"validations": self._validations, "best_sum": self._best_sum, "best_episodes": self._best_episodes}

    def restore(self, values: Mapping[str, Any], best_weights: dict[str, Tensor] | None) -> None:
        """Go on where `to_json` was called.

        Args:
            values: what it gave.
            best_weights: `best_weights` then.
        """
        self._validations = values["validations"]
        self._best_sum, self._best_episodes = values["best_sum"], values["best_episodes"]
        self.best_weights, self._best_network = best_weights, None

    def _network_of_best(self, like: QNetwork) -> QNetwork | None:
        """The best network, built like another."""
        if self._best_network is None and self.best_weights is not None:
            self._best_network = copy.deepcopy(like)
            self._best_network.load_state_dict(self.best_weights)
        return self._best_network

    def _note_best(self, returns: NDArray[np.float64]) -> None:
        self._best_sum += float(returns.sum())
        self._best_episodes += len(returns)


def copy_weights(network: QNetwork) -> dict[str, Tensor]:
    """A network's tensors as they are now, on the CPU."""
    return {name: tensor.detach().cpu().clone() for name, tensor in network.state_dict().items()}
