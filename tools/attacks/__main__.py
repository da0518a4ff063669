"""Runs every attack against a separate server, and writes the results into a document.

    python -m tools.attacks --report docs/operations/security.md

Each attack gets a new server with TLS and tokens. A bystander process draws batches before and during the attack, and
reconnects from time to time. Attackers have half of the processors to themselves. An attack that slows the bystander
down is repeated, and its best round counts, to filter out delays that other programs caused.
"""

from __future__ import annotations

from pathlib import Path

from replay_proto.command_line import new_app, run_app
from rich.progress import track

from tools.attacks.bystander import all_of
from tools.attacks.processes import leave_processors_to_attackers
from tools.attacks.runner import GROUPS, HEADS, best_round, line_of
from tools.faults.report import write_section

ALONE_S = 1.5
"""Duration before each attack in which the bystander is alone."""


def main(*, report: Path | None = None, seconds: float = 6.0, only: str = "") -> None:
    """Attack, and report.

    Args:
        report: document whose sections on attacks are replaced.
        seconds: how long each attack lasts.
        only: run only attacks whose names contain this.
    """
    leave_processors_to_attackers()
    faults: list[str] = []
    for group, kinds in GROUPS.items():
        chosen = [kind for kind in kinds if only in kind.name]
        outcomes = [best_round(kind, seconds, ALONE_S) for kind in track(chosen, description=group)]
        alone = all_of([outcome.alone for outcome in outcomes])
        lines = [line_of("no attack", alone, 0.0), *(outcome.line() for outcome in outcomes)]
        for name, *figures in (HEADS, *lines):
            print(f"{name:70}", *(f"{figure:>10}" for figure in figures))
        if report is not None:
            write_section(report, group, HEADS, lines)
        faults += [f"{outcome.attack.name}: {what}" for outcome in outcomes for what in outcome.faults(alone.p99_ms)]
    if faults:
        raise SystemExit("\n".join(faults))


if __name__ == "__main__":
    run_app(new_app("python -m tools.attacks", __doc__, main))
