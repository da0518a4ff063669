"""The result of a run: a table for people and a file for programs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from replay_agent.acting.evaluation import EvaluationResult
from replay_agent.settings.whole_files import replace_text


@dataclass(frozen=True)
class EvaluationSummary:
    """Returns of the final greedy episodes: their number, mean, standard deviation and extremes."""

    episodes: int
    mean: float
    std: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, result: EvaluationResult) -> EvaluationSummary:
        """Summarize a result."""
        returns = result.returns
        return cls(len(returns), result.mean, float(returns.std()), float(returns.min()), float(returns.max()))


@dataclass(frozen=True)
class TrainingReport:
    """The result of a run. Attributes without a comment are settings of the run.

    Attributes:
        ending: why training ended.
        env_steps: environment steps over all actors.
        updates: gradient steps.
        training_s: seconds of training, validation included.
        best_validation: mean return of the selected network, over all validation episodes that it played.
        evaluation: final greedy evaluation on separate seeds; None if there was none.
        run_dir: directory of the run.
        curve: path of the plot of the learning curve.
        history: path of a JSON file with the points of the curve.
    """

    env: str
    algorithm: str
    backend: str
    seed: int
    ending: str
    env_steps: int
    updates: int
    training_s: float
    best_validation: float | None
    evaluation: EvaluationSummary | None
    run_dir: str
    curve: str
    history: str

    def save(self, path: Path) -> None:
        """Write the report as JSON."""
        replace_text(path, json.dumps(asdict(self), indent=2, allow_nan=False) + "\n")

    def show(self, console: Console) -> None:
        """Print the report as a table."""
        title = f"{self.env}, {self.algorithm}, {self.backend}, seed {self.seed}"
        table = Table(title=title, show_header=False, title_justify="left")
        for name, value in self._rows():
            table.add_row(name, value)
        console.print(table)
        # Do not truncate paths, so that they can be copied.
        console.print(f"learning curve: {self.curve}", soft_wrap=True, highlight=False)
        console.print(f"logs: tensorboard --logdir {self.run_dir}", soft_wrap=True, highlight=False)

    def _rows(self) -> list[tuple[str, str]]:
        rows = [
            ("training ended", self.ending),
            ("environment steps", f"{self.env_steps:,}"),
            ("gradient steps", f"{self.updates:,}"),
            ("training time", f"{self.training_s:.1f} s"),
        ]
        if self.best_validation is not None:
            rows.append(("best validation", f"{self.best_validation:.1f}"))
        found = self.evaluation
        if found is None:
            return [*rows, ("evaluation", "not played")]
        return [
            *rows,
            (f"evaluation, {found.episodes} episodes", f"[bold green]{found.mean:.1f}[/] ± {found.std:.1f}"),
            ("lowest, highest return", f"{found.lowest:.1f}, {found.highest:.1f}"),
        ]
