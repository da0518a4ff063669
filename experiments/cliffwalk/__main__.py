"""The command `python -m experiments.cliffwalk`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from experiments.cliffwalk.command import cliffwalk
from experiments.cliffwalk.settings import CliffwalkSettings
from experiments.common.command import run_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment, and return the exit code of `run_command`."""
    return run_command("cliffwalk", CliffwalkSettings, cliffwalk, arguments)


if __name__ == "__main__":
    sys.exit(main())
