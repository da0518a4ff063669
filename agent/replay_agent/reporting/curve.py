"""Plots the learning curve: returns of training episodes and validations against environment steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from replay_agent.reporting.history import History

SMOOTHING_EPISODES = 20
SIZE_INCHES = (9.0, 5.0)
RESOLUTION_DPI = 120
EPISODE_COLOR, MEAN_COLOR, VALIDATION_COLOR = "#9ecae1", "#3182bd", "#e6550d"


def draw_curve(history: History, path: Path, title: str, solved_return: float | None = None) -> None:
    """Plot the learning curve to a PNG file. If ``solved_return`` is given, a horizontal line shows it."""
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    if history.episode_steps:
        smoothed = running_mean(np.array(history.episode_returns), SMOOTHING_EPISODES)
        axes.plot(history.episode_steps, history.episode_returns, ".", color=EPISODE_COLOR, ms=3, label="episode")
        axes.plot(history.episode_steps, smoothed, color=MEAN_COLOR, label=f"mean of {SMOOTHING_EPISODES} episodes")
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
    figure.savefig(path, dpi=RESOLUTION_DPI)


def running_mean(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Average each value with up to ``window - 1`` values before it: float64[n] to float64[n]."""
    sums = np.cumsum(np.insert(values, 0, 0.0))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    means: NDArray[np.float64] = (sums[ends] - sums[starts]) / (ends - starts)
    return means
