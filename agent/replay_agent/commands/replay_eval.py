"""The command `replay-eval`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from replay_proto.starting import exits_on_ctrl_c, needs_extras

with exits_on_ctrl_c(), needs_extras("replay-eval", "agent"):
    from cyclopts import Parameter
    from cyclopts.types import NonNegativeInt, PositiveInt
    from cyclopts.validators import Number
    from replay_proto.command_line import new_app, run_app

Epsilon = Annotated[float | None, Parameter(validator=Number(gte=0, lte=1))]


def evaluate(run: Path, /, *, episodes: PositiveInt = 100, seed: NonNegativeInt = 0, epsilon: Epsilon = None) -> int:
    """Play episodes with the best network of a run, and print their returns.

    Args:
        run: directory of the run.
        episodes: number of episodes.
        seed: seed of the first episode; the others follow.
        epsilon: probability of a random action; default: that of the run.
    """
    with needs_extras("replay-eval", "agent"):
        from rich.console import Console

        from replay_agent.reporting.training_report import EvaluationSummary
        from replay_agent.training.playing import FAILURES, evaluate_run
    try:
        found = EvaluationSummary.of(evaluate_run(run, range(seed, seed + episodes), epsilon))
    except FAILURES as error:
        print(f"replay-eval: {error}", file=sys.stderr)
        return 1
    Console().print(
        f"{found.episodes} episodes: [bold green]{found.mean:.1f}[/] ± {found.std:.1f}, "
        f"lowest {found.lowest:.1f}, highest {found.highest:.1f}"
    )
    return 0


def main() -> int:
    """Run the command, and return its exit status."""
    return run_app(new_app("replay-eval", __doc__, evaluate)) or 0


if __name__ == "__main__":
    sys.exit(main())
