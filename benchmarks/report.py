"""Human-readable results: tables in the terminal and in docs/project/benchmarks.md."""

from __future__ import annotations

import datetime
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.pictures import draw_steps

_PACKAGES = ("grpcio", "protobuf", "numpy", "numba", "uvloop")


@dataclass(frozen=True)
class Section:
    """One table of figures."""

    title: str
    """Subject of the measurement."""
    command: str
    """Command that measures only this."""
    header: Sequence[str]
    """Names and units of the columns."""
    rows: Sequence[Sequence[str]]
    """The figures."""
    notes: Sequence[str] = field(default_factory=list)
    """Notes for interpreting them."""
    times_us: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Microseconds per step in each round, by contestant, for the picture of step times; may be empty."""
    picture: str = ""
    """File name of a picture of the figures, in the folder of the document; empty if there is none."""

    def to_markdown(self) -> str:
        """Return the section as Markdown."""
        lines = [f"## {self.title}", "", *self.notes, *([""] if self.notes else [])]
        lines += [f"![{self.title}]({self.picture})", ""] if self.picture else []
        lines += ["| " + " | ".join(self.header) + " |", "|" + "---|" * len(self.header)]
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        return "\n".join([*lines, "", f"`{self.command}`", ""])

    def show(self, console: Console) -> None:
        """Print the section."""
        table = Table(*self.header, title=self.title, title_justify="left")
        for row in self.rows:
            table.add_row(*row)
        console.print(table)
        for note in self.notes:
            console.print(note, markup=False, highlight=False)


def spread(values: Sequence[float]) -> str:
    """Format figures as ``median (smallest to largest)``."""
    return f"{statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})"


def machine() -> str:
    """Return a sentence about the machine and the versions of Python and packages."""
    versions = ", ".join(f"{package} {version(package)}" for package in _PACKAGES)
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return (
        f"Measured on {datetime.date.today():%d %B %Y}: {_processor()}, {os.cpu_count()} cores, {memory_gb:.0f} GB, "
        f"Linux {platform.release().split('-')[0]}, Python {platform.python_version()}, {versions}."
    )


def write_document(path: Path, sections: Sequence[Section]) -> None:
    """Write sections to a page such as docs/project/benchmarks.md, and a picture of step times to the same folder."""
    picture = path.with_suffix(".png")
    draw_steps({section.title: section.times_us for section in sections if section.times_us}, picture)
    intro = [
        "# Benchmarks",
        "",
        machine(),
        "The machine is shared, and its speed changes by up to half from hour to hour: trust the ratios within a table "
        "more than absolute times. Figures are medians, followed by minimum and maximum in parentheses.",
        "",
        "`make bench` runs all benchmarks and writes this page. With `ARGS=--quick`, it measures in windows of 1 s and "
        "takes a few minutes. It leaves out the memory of a million Atari transitions unless 10 GB are free.",
        "To include cpprb and Reverb, run `benchmarks/peers/install.sh` first. "
        "[Findings](../../benchmarks/findings.md) explains the figures, and has those of other machines.",
        "",
        f"![Time per learner step]({picture.name})",
        "",
        "",
    ]
    parts = ["\n".join(intro), *(section.to_markdown() for section in sections)]
    path.write_text("\n".join(parts), "utf-8")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
