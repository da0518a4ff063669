"""Runs all benchmarks of docs/project/benchmarks.md, and writes that page and its pictures: `make bench`.

python -m benchmarks [--quick] [--peers FOLDER] [--output FILE]
"""

from __future__ import annotations

from pathlib import Path

from replay_proto.command_line import new_app, run_app
from replay_server.backends import BACKENDS
from replay_server.process.warming import warm_up
from rich.console import Console

from benchmarks import (
    backends,
    capacities,
    compact,
    fleet,
    inserts,
    learner_step,
    many_writers,
    memory,
    reference_buffers,
    shards,
    transfers,
)
from benchmarks.contestants import ROUNDS, WINDOW_S
from benchmarks.pictures import draw_growth
from benchmarks.report import Section, write_document
from benchmarks.workloads import WORKLOADS

PAGE = Path("docs/project/benchmarks.md")
_QUICK_ROUNDS = 3
_QUICK_WINDOW_S = 1.0
_QUICK_STEPS = 50_000


def backend_section(rows: tuple[int, ...]) -> Section:
    """Measure the priority backends in process, with these numbers of rows."""
    warm_up()
    results = [backends.measure(backend, count) for backend in BACKENDS for count in rows]
    return Section(
        title="Priority backends: calls in process",
        command="python -m benchmarks.backends",
        header=["backend", "rows", *(f"{timing.call}, us" for timing in results[0].timings), "bytes per row"],
        rows=[
            [
                result.backend,
                f"{result.rows:,}",
                *(f"{timing.median_us:.1f} ({timing.p10_us:.1f} to {timing.p90_us:.1f})" for timing in result.timings),
                f"{result.bytes_per_row:.1f}",
            ]
            for result in results
        ],
        notes=[
            "Medians, with the 10th and 90th percentiles in parentheses. An insert writes new rows and clears the same "
            "number of old ones."
        ],
    )


def main(*, quick: bool = False, peers: Path = Path(".peers"), output: Path = PAGE) -> None:
    """Measure everything, print the results, and write the page.

    Args:
        quick: measure in few, short windows, for a rough result.
        peers: folder into which benchmarks/peers/install.sh has installed the peers.
        output: the page to write.
    """
    rounds, window_s = (_QUICK_ROUNDS, _QUICK_WINDOW_S) if quick else (ROUNDS, WINDOW_S)
    console = Console(width=160)
    sections = [backend_section(backends.DEFAULT_ROWS)]
    sections[-1].show(console)
    for workload in WORKLOADS.values():
        for section in (
            learner_step.measure(workload, peers, rounds, window_s),
            inserts.measure(workload, rounds, window_s),
        ):
            section.show(console)
            sections.append(section)
    for section in compact.measure_all(peers, rounds, window_s):
        section.show(console)
        sections.append(section)
    for section in (
        capacities.measure(rounds, window_s),
        many_writers.measure(rounds, window_s),
        fleet.measure(rounds, window_s),
        memory.measure(_QUICK_STEPS if quick else memory.STEPS),
        transfers.measure(rounds),
        shards.measure(rounds, window_s),
        shards.outage(),
    ):
        section.show(console)
        sections.append(section)
    section, growth = reference_buffers.measure(rounds=rounds)
    section.show(console)
    draw_growth(growth, output.with_name(section.picture))
    sections.append(section)
    write_document(output, sections)
    console.print(f"written to {output}")


if __name__ == "__main__":
    run_app(new_app("python -m benchmarks", __doc__, main))
