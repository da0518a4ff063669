"""Shared by tests of complete runs: settings that keep runs short, and a view that intervenes during a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from replay_agent.reporting.progress import ProgressView, Status

RECONNECT_TIMEOUT_S = 30.0
PATIENCE_S = 120.0
"""Programs that load torch start slowly on a busy machine."""
SHORT_RUN = {
    "steps": 900,
    "learning_starts": 100,
    "replay_ratio": 0.25,
    "batch_size": 16,
    "hidden_sizes": (16,),
    "validate_interval": 400,
    "validation_episodes": 2,
    "confirm_episodes": 4,
    "evaluation_episodes": 4,
    "solved_return": None,
    "tensorboard": False,
}
"""Settings of a run that takes one or two seconds."""


def flags_of(values: dict[str, object]) -> list[str]:
    """Convert settings to a command line."""
    flags = []
    for name, value in values.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            flags.append(flag if value else flag.replace("--", "--no-", 1))
        elif value is not None:
            flags += [flag, ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
    return flags


@dataclass
class Trained:
    """Result of a run, and its output."""

    status: int
    output: str


class Watcher(ProgressView):
    """A view that calls a function once, when the run reaches a step."""

    def __init__(self, step: int, action: Callable[[], object]) -> None:
        self.statuses: list[Status] = []
        self.acted_at: int | None = None
        self._step = step
        self._action = action

    def show(self, status: Status) -> None:
        self.statuses.append(status)
        if self.acted_at is None and status.env_steps >= self._step:
            self.acted_at = status.env_steps
            self._action()
