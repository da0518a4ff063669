"""History of training: the points of the learning curve."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

RECENT_EPISODES = 20


@dataclass
class History:
    """Episodes and validations in chronological order.

    Attributes:
        episode_steps: environment steps, over all actors, at the end of each training episode.
        episode_returns: their undiscounted returns.
        validation_steps: environment steps at each validation.
        validation_means: their mean returns.
    """

    episode_steps: list[int] = field(default_factory=list)
    episode_returns: list[float] = field(default_factory=list)
    validation_steps: list[int] = field(default_factory=list)
    validation_means: list[float] = field(default_factory=list)
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_EPISODES))

    def add_episode(self, step: int, episode_return: float) -> None:
        """Record a training episode."""
        self.episode_steps.append(step)
        self.episode_returns.append(episode_return)
        self._recent.append(episode_return)

    def add_validation(self, step: int, mean: float) -> None:
        """Record a validation."""
        self.validation_steps.append(step)
        self.validation_means.append(mean)

    @property
    def recent_return(self) -> float | None:
        """Mean return of recent training episodes; None before the first."""
        return sum(self._recent) / len(self._recent) if self._recent else None

    def to_json(self) -> dict[str, Any]:
        """As plain lists."""
        return {
            "episode_steps": self.episode_steps,
            "episode_returns": self.episode_returns,
            "validation_steps": self.validation_steps,
            "validation_means": self.validation_means,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> History:
        """Restore from `to_json`."""
        history = cls(
            episode_steps=list(values["episode_steps"]),
            episode_returns=list(values["episode_returns"]),
            validation_steps=list(values["validation_steps"]),
            validation_means=list(values["validation_means"]),
        )
        history._recent.extend(history.episode_returns[-RECENT_EPISODES:])
        return history
