"""Breaks the network between a server and its clients again and again, and audits the data.

    python -m tools.faults.network_torture --minutes 10 --report docs/operations/reliability.md

Server and clients run in separate network namespaces, see `tools.faults.link`. Needs root.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from replay_proto.command_line import new_app, run_app
from rich.progress import track

from tests.support.server_process import ServerProcess
from tools.faults.link import Link, obstacle
from tools.faults.network_load import NetworkFigures
from tools.faults.report import document_with, write_section

PROBLEMS = {
    "cable pulled out": lambda link: link.cut(),
    "packets swallowed": lambda link: link.swallow(),
    "packets to the server swallowed": lambda link: link.swallow("s"),
    "packets to the clients swallowed": lambda link: link.swallow("c"),
    "connections reset": lambda link: link.refuse(),
    "3 in 10 packets lost": lambda link: link.lose(0.3),
    "slow and lossy": lambda link: link.slow(),
}
_LONG = 0.1
"""Fraction of faults that last long."""
_PATIENCE_S = 180.0


@dataclass
class NetworkTorture:
    """Faults injected so far."""

    link: Link
    random: random.Random
    short_s: float
    """Maximum duration of most faults."""
    long_s: float
    """Minimum duration of the other faults, which last up to twice as long."""
    problems: Counter[str] = field(default_factory=Counter)
    """Number of faults by kind."""
    left: list[str] = field(default_factory=list)
    """Remaining faults of the current round; each occurs once per round."""

    def once(self) -> None:
        """Run undisturbed for a while, then inject a fault."""
        time.sleep(self.random.uniform(0.1, self.short_s))
        if not self.left:
            self.left = self.random.sample(list(PROBLEMS), len(PROBLEMS))
        problem = self.left.pop()
        PROBLEMS[problem](self.link)
        self.problems[problem] += 1
        is_long = self.random.random() < _LONG
        span_s = (self.long_s, 2 * self.long_s) if is_long else (0.05, self.short_s)
        time.sleep(self.random.uniform(*span_s))
        self.link.repair()


def torture(link: Link, server: ServerProcess, problems: NetworkTorture, rounds: Iterator[object]) -> NetworkFigures:
    """Load a server over the link during rounds of faults; return the result of the audit.

    Raises:
        AssertionError: the audit failed.
    """
    clients = subprocess.Popen(
        [*link.at_clients, sys.executable, "-m", "tools.faults.network_load", f"{link.server_host}:{server.port}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        for _ in rounds:
            problems.once()
            assert clients.poll() is None, "the clients gave up"
        figures, _ = clients.communicate(timeout=_PATIENCE_S)
    finally:
        clients.kill()
        clients.communicate()
    assert clients.returncode == 0, "the audit failed, see above"
    return NetworkFigures(**json.loads(figures))


def server_flags(link: Link, data: Path) -> tuple[str, ...]:
    """Flags of a server at the link's end."""
    return ("--host", link.server_host, "--insecure", "--no-same-host", "--data-dir", str(data))


def lines(problems: NetworkTorture, figures: NetworkFigures, minutes: float) -> Iterator[tuple[str, str]]:
    """A description and the figure."""
    yield "minutes", f"{minutes:g}"
    for problem, count in sorted(problems.problems.items()):
        yield problem, f"{count:,}"
    yield "rows acknowledged", f"{figures.rows:,}"
    yield "batches drawn", f"{figures.batches:,}"
    yield "inserts that were repeated and not applied again", f"{figures.repeated_inserts:,}"
    yield "rows compared", f"{figures.rows_audited:,}"
    yield "of these, with a priority that a learner had set", f"{figures.priorities_audited:,}"
    yield (
        f"longest pause of a client, with problems of up to {2 * problems.long_s:g} s",
        f"{figures.longest_pause_s:.1f} s",
    )
    # Any violation would have ended the run.
    yield "acknowledged rows lost, rows doubled, torn rows, priorities lost, clients that gave up", "0"


def _until(deadline_s: float) -> Iterator[float]:
    while (now := time.monotonic()) < deadline_s:
        yield now


def main(
    *,
    minutes: Annotated[float, Parameter(validator=Number(gte=0.25))] = 10.0,
    long_s: float = 15.0,
    seed: int = 0,
    report: Annotated[Path | None, Parameter(validator=document_with("network"))] = None,
) -> None:
    """Torture the network of a server of its own, and report.

    Args:
        minutes: how long to go on.
        long_s: how long long problems last.
        seed: chooses moments and problems.
        report: document whose section on networks is replaced.
    """
    if reason := obstacle():
        sys.exit(f"no network of two namespaces can be made: {reason}")
    with Link("torture") as link, tempfile.TemporaryDirectory(prefix="network-torture-") as name:
        folder = Path(name)
        flags = server_flags(link, folder / "data")
        server = ServerProcess(folder / "log", *flags, within=link.at_server)
        problems = NetworkTorture(link, random.Random(seed), 1.5, long_s)
        try:
            rounds = _until(time.monotonic() + minutes * 60)
            figures = torture(link, server, problems, iter(track(rounds, description="breaking", total=None)))
        finally:
            server.kill()
        for what, figure in lines(problems, figures, minutes):
            print(f"{figure:>12}  {what}")
        if report is not None:
            write_section(report, "network", ("", "figure"), lines(problems, figures, minutes))


if __name__ == "__main__":
    run_app(new_app("python -m tools.faults.network_torture", __doc__, main))
