"""TensorBoard logs of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from replay_client.torch import TensorBatch

from replay_agent.acting.actor import FinishedEpisode
from replay_agent.reporting.progress import Status


class MetricsLog:
    """Writes event files for TensorBoard. Writes nothing if there is no directory."""

    def __init__(self, directory: Path | None) -> None:
        """Write into ``directory``; None: write nothing."""
        self._writer = None
        if directory is not None:
            # Imported here, because it takes a second, and runs without logs do not need it.
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(directory))

    def episode(self, step: int, episode: FinishedEpisode) -> None:
        """Record return and length of a training episode."""
        self._write(step, {"episode/return": episode.episode_return, "episode/length": float(episode.length)})

    def validation(self, step: int, mean: float) -> None:
        """Record the mean return of a validation."""
        self._write(step, {"validation/mean_return": mean})

    def status(self, status: Status, batch: TensorBatch | None) -> None:
        """Record the status and figures of the latest batch. This waits for the device."""
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
        if batch is not None and self._writer is not None:
            values |= {
                "replay/size": float(batch.table_size),
                "replay/total_mass": batch.total_mass,
                "replay/mean_weight": float(batch.weights.mean()),
            }
        self._write(status.env_steps, values)

    def close(self) -> None:
        """Flush and close."""
        if self._writer is not None:
            self._writer.close()

    def _write(self, step: int, values: Mapping[str, float | None]) -> None:
        if self._writer is not None:
            for name, value in values.items():
                if value is not None:
                    self._writer.add_scalar(name, value, step)
