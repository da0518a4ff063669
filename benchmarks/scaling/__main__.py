"""Writes the figures and the picture of "Sizing" in docs/operations/scaling.md.

    python -m benchmarks.scaling [--measure]

With ``--measure``, the costs are measured first, which takes three minutes; otherwise they are read from costs.json.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Final

from replay_proto.command_line import new_app, run_app

from benchmarks.report import machine
from benchmarks.scaling import costs, reality
from benchmarks.scaling.curves import draw
from benchmarks.scaling.page import rewrite

COSTS: Final = Path(__file__).with_name("costs.json")
REALITY: Final = Path(__file__).with_name("reality.json")
PAGE: Final = Path("docs/operations/scaling.md")


def main(*, measure: bool = False) -> None:
    """Write the figures and the picture.

    Args:
        measure: measure the costs first.
    """
    if measure:
        costs.measure(machine()).save(COSTS)
        REALITY.write_text(json.dumps([asdict(each) for each in reality.measure()], indent=2) + "\n")
    found = costs.Costs.load(COSTS)
    PAGE.write_text(rewrite(PAGE.read_text(), found, reality.load(REALITY)))
    draw(found, PAGE.with_name("sizing.png"))


if __name__ == "__main__":
    run_app(new_app("python -m benchmarks.scaling", __doc__, main))
