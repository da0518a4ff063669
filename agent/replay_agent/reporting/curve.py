"""The learning curve, and its plot: returns of training episodes and validations against environment steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

RECENT_EPISODES = 20
EPISODE_COLOR, MEAN_COLOR, VALIDATION_COLOR = "#9ecae1", "#3182bd", "#e6550d"


@dataclass
class History:
    """Episodes and validations in chronological order; ``vars(history)`` are its points as JSON values.

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


def draw_curve(history: History, path: Path, title: str, solved_return: float | None = None) -> None:
    """Plot the learning curve to a PNG file. If ``solved_return`` is given, a horizontal line shows it."""
    figure = Figure(figsize=(9.0, 5.0), layout="constrained")
    axes = figure.subplots()
    if history.episode_steps:
        smoothed = running_mean(np.array(history.episode_returns), RECENT_EPISODES)
        axes.plot(history.episode_steps, history.episode_returns, ".", color=EPISODE_COLOR, ms=3, label="episode")
        axes.plot(history.episode_steps, smoothed, color=MEAN_COLOR, label=f"mean of {RECENT_EPISODES} episodes")
    if history.validation_steps:
        axes.plot(
            history.validation_steps, history.validation_means, "o-", color=VALIDATION_COLOR, ms=4, label="validation"
        )
    if solved_return is not None:
        axes.axhline(solved_return, color="gray", ls=":", lw=1, label=f"goal {solved_return:g}")
    axes.set(title=title, xlabel="environment steps", ylabel="return")
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        # Below the axes, to avoid covering curves.
        figure.legend(loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=120)


def running_mean(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Average each value with up to ``window - 1`` values before it: float64[n] to float64[n]."""
    sums = np.convolve(values, np.ones(window))[: len(values)]
    means: NDArray[np.float64] = sums / np.minimum(np.arange(1, len(values) + 1), window)
    return means
