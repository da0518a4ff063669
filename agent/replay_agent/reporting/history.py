"""The points of the learning curve."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

RECENT_EPISODES = 20


@dataclass
class History:
    """Episodes and validations in chronological order.

    Attributes:
        episode_steps: environment steps, over all actors, at the end of each training episode.
        episode_returns: undiscounted return of each training episode.
        validation_steps: environment steps at each validation.
        validation_means: mean return of each validation.
    """

    episode_steps: list[int] = field(default_factory=list)
    episode_returns: list[float] = field(default_factory=list)
    validation_steps: list[int] = field(default_factory=list)
    validation_means: list[float] = field(default_factory=list)

    def add_episode(self, step: int, episode_return: float) -> None:
        """Record a training episode."""
        self.episode_steps.append(step)
        self.episode_returns.append(episode_return)

    def add_validation(self, step: int, mean: float) -> None:
        """Record a validation."""
        self.validation_steps.append(step)
        self.validation_means.append(mean)

    @property
    def recent_return(self) -> float | None:
        """Mean return of the last `RECENT_EPISODES` training episodes; None if no episode has ended yet."""
        recent = self.episode_returns[-RECENT_EPISODES:]
        return sum(recent) / len(recent) if recent else None

    def to_json(self) -> dict[str, Any]:
        """Return the points as JSON values, from which ``History(**values)`` restores the history."""
        return dict(vars(self))
