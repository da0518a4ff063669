"""Carries out all attacks, each on a server of its own, and writes what came of them into a document.

    python -m tests.attacks --report docs/security.md

For each attack a server is started, with TLS and tokens. A bystander draws batches, in a process of its own, alone and
beside the attack; every now and then it connects anew. Attackers have half of the processors to themselves. An attack
that makes the bystander wait is repeated, and the best of its rounds counts: what another program on the machine caused
does not come again.
"""

from __future__ import annotations

from pathlib import Path

from replay_proto.command_line import new_app, run_app
from rich.progress import track

from tests.attacks.bystander import all_of
from tests.attacks.processes import leave_processors_to_attackers
from tests.attacks.runner import GROUPS, HEADS, best_round, line_of
from tests.faults.report import write_section

ALONE_S = 1.5
"""For so long the bystander is alone before each attack."""


def main(*, report: Path | None = None, seconds: float = 6.0, only: str = "") -> None:
    """Attack, and report.

    Args:
        report: document whose sections on attacks are written anew.
        seconds: how long each attack lasts.
        only: part of the names of those to carry out.
    """
    leave_processors_to_attackers()
    faults: list[str] = []
    for group, kinds in GROUPS.items():
        chosen = [kind for kind in kinds if only in kind.name]
        outcomes = [best_round(kind, seconds, ALONE_S) for kind in track(chosen, description=group)]
        alone = all_of([outcome.alone for outcome in outcomes])
        lines = [line_of("nothing", alone, 0.0), *(outcome.line() for outcome in outcomes)]
        for name, *figures in (HEADS, *lines):
            print(f"{name:70}", *(f"{figure:>10}" for figure in figures))
        if report is not None:
            write_section(report, group, HEADS, lines)
        faults += [f"{outcome.attack.name}: {what}" for outcome in outcomes for what in outcome.faults(alone.p99_ms)]
    if faults:
        raise SystemExit("\n".join(faults))


if __name__ == "__main__":
    run_app(new_app("python -m tests.attacks", __doc__, main))
