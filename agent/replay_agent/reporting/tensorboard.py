"""TensorBoard logs of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from replay_client.torch import TensorBatch

from replay_agent.acting.actor import FinishedEpisode
from replay_agent.reporting.status import Status


class MetricsLog(Protocol):
    """Records training metrics."""

    def episode(self, step: int, episode: FinishedEpisode) -> None:
        """Record a training episode."""
        ...

    def validation(self, step: int, mean: float) -> None:
        """Record a validation."""
        ...

    def status(self, status: Status, batch: TensorBatch | None) -> None:
        """Record the status and the latest batch."""
        ...

    def close(self) -> None:
        """Flush and close."""
        ...


class TensorBoardLog:
    """Writes event files."""

    def __init__(self, directory: Path) -> None:
        """Write into ``directory``."""
        # Imported here: it takes a second, which runs without logs should not pay.
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(directory))

    def episode(self, step: int, episode: FinishedEpisode) -> None:
        """Record return and length."""
        self._scalar("episode/return", episode.episode_return, step)
        self._scalar("episode/length", float(episode.length), step)

    def validation(self, step: int, mean: float) -> None:
        """Record the mean return."""
        self._scalar("validation/mean_return", mean, step)

    def status(self, status: Status, batch: TensorBatch | None) -> None:
        """Record figures of learning, exploration, speed and replay."""
        values = {
            "learning/loss": status.loss,
            "learning/grad_norm": status.grad_norm,
            "learning/mean_value": status.mean_value,
            "learning/updates": float(status.updates),
            "schedule/epsilon": status.epsilon,
            "schedule/beta": status.beta,
            "speed/env_steps_per_s": status.steps_per_s,
            "speed/updates_per_s": status.updates_per_s,
        }
        if batch is not None:
            values |= {
                "replay/size": float(batch.size),
                "replay/total_mass": batch.total_mass,
                "replay/mean_weight": float(batch.weights.mean()),
            }
        for name, value in values.items():
            if value is not None:
                self._scalar(name, value, status.env_steps)

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()

    def _scalar(self, name: str, value: float, step: int) -> None:
        self._writer.add_scalar(name, value, step)


class NoLog:
    """Writes nothing."""

    def episode(self, step: int, episode: FinishedEpisode) -> None:
        """Do nothing."""

    def validation(self, step: int, mean: float) -> None:
        """Do nothing."""

    def status(self, status: Status, batch: TensorBatch | None) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
