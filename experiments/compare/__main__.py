"""The command `python -m experiments.compare`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from experiments.common.command import run_command
from experiments.compare.command import compare
from experiments.compare.settings import CompareSettings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment, and return the exit code of `run_command`."""
    return run_command("compare", CompareSettings, compare, arguments)


if __name__ == "__main__":
    sys.exit(main())
