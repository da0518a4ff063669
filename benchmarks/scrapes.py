"""How much a scrape per second slows down the steps of a learner.

    python -m benchmarks.scrapes [cartpole] [--tables 3] [--rounds 60] [--seconds 5]

Windows with and without scrapes alternate. The scrapes come from a separate process, so that they do not take time from
the learner's interpreter.
"""

from __future__ import annotations

import multiprocessing
import socket
import time
from contextlib import ExitStack
from multiprocessing.synchronize import Event
from typing import Literal

from replay_client import ReplayClient
from replay_proto.command_line import new_app, run_app
from rich.console import Console

from benchmarks.contestants import Window, take_turns
from benchmarks.learner_step import sampler_steps
from benchmarks.live_page import busy_table, scrape
from benchmarks.paired import compared
from benchmarks.report import Section
from benchmarks.service import full_table, running_server
from benchmarks.workloads import WORKLOADS, Workload

_PREFETCH = 3
_START_S = 60.0
_SPAWNING = multiprocessing.get_context("spawn")


def measure(workload: Workload, tables: int, rounds: int, seconds: float) -> Section:
    """Measure the learner of one table, with and without scrapes of a server that has this many tables."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with ExitStack() as stack:
        address, _ = stack.enter_context(running_server("--http-port", str(port)))
        client = stack.enter_context(ReplayClient(address))
        steps = sampler_steps(full_table(client, workload), workload, _PREFETCH)
        for number in range(1, tables):
            busy_table(stack, client, number)
        wanted, loaded = _SPAWNING.Event(), _SPAWNING.Event()
        scraper = _SPAWNING.Process(target=_scrape_while, args=(wanted, loaded, port), daemon=True)
        scraper.start()
        stack.callback(scraper.terminate)
        loaded.wait(_START_S)
        windows = {"none": steps, "one each second": _during(wanted, steps)}
        without, scraped = take_turns(windows, rounds, seconds).values()
        if not scraper.is_alive():
            raise RuntimeError("the process that scrapes has failed")
    medians = compared(list(zip(scraped, without, strict=True)))
    return Section(
        title=f"Learner step during scrapes, {workload.name}, {tables} tables",
        command=f"python -m benchmarks.scrapes {workload.name} --tables {tables} --rounds {rounds} --seconds {seconds}",
        header=["us per step, a scrape each second", "us per step, no scrapes", "ratio"],
        rows=[medians],
        notes=["Medians; the ratio is the geometric mean over all rounds, with its standard error."],
    )


def _scrape_while(wanted: Event, loaded: Event, port: int) -> None:
    """Scrape each second while ``wanted`` is set."""
    loaded.set()
    while wanted.wait():
        scrape(port)
        time.sleep(1.0)


def _during(wanted: Event, steps: Window) -> Window:
    """Return a window that measures the same steps during scrapes."""

    def window(window_s: float) -> float:
        wanted.set()
        try:
            return steps(window_s)
        finally:
            wanted.clear()

    return window


def main(
    workload: Literal["cartpole", "atari"] = "cartpole", /, *, tables: int = 1, rounds: int = 60, seconds: float = 5.0
) -> None:
    """Measure a learner with and without scrapes.

    Args:
        workload: what the learner draws.
        tables: number of tables. One is measured; each of the others has an idle learner.
        rounds: number of windows of each kind, at least 2.
        seconds: length of a window.
    """
    measure(WORKLOADS[workload], tables, rounds, seconds).show(Console())


if __name__ == "__main__":
    run_app(new_app("benchmarks.scrapes", __doc__, main))
