"""CPU time that open live pages and scrapes cost a server.

    python -m benchmarks.live_page [--tables 3] [--pages 10] [--seconds 20]

Each table is full and has a learner with an open stream, which is idle. The cost of a page depends on the
number of tables and clients, not on their rates.
"""

from __future__ import annotations

import socket
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import psutil
from replay_client import ReplayClient
from replay_proto.command_line import new_app, run_app
from rich.console import Console
from rich.table import Table as Grid

from benchmarks.service import full_table, running_server
from benchmarks.workloads import WORKLOADS

_BETA = 0.4
_SETTLE_S = 2.0
_RECEIVED_BYTES = 1 << 16


def main(*, tables: int = 3, pages: int = 10, seconds: float = 20.0) -> None:
    """Measure a server without pages, with pages, with a scrape per second, and with both.

    Args:
        tables: number of tables.
        pages: number of open pages.
        seconds: length of each measurement.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with ExitStack() as stack:
        address, pid = stack.enter_context(running_server("--http-port", str(port)))
        client = stack.enter_context(ReplayClient(address))
        for number in range(tables):
            busy_table(stack, client, number)
        process = psutil.Process(pid)
        idle = _cpu_share(process, seconds)
        results = {"no page": idle}
        with ExitStack() as watching:
            watching.enter_context(_repeating(lambda: scrape(port)))
            results["a scrape per second"] = _cpu_share(process, seconds)
        with ExitStack() as watching:
            for _ in range(pages):
                watching.enter_context(_page(port))
            results[f"{pages} pages"] = _cpu_share(process, seconds)
            watching.enter_context(_repeating(lambda: scrape(port)))
            results[f"{pages} pages and a scrape per second"] = _cpu_share(process, seconds)
    grid = Grid("server", "CPU, % of a core", "more than without", title=f"{tables} tables")
    for name, share in results.items():
        grid.add_row(name, f"{share:.2f}", f"{share - idle:.2f}")
    Console().print(grid)


def busy_table(stack: ExitStack, client: ReplayClient, number: int) -> None:
    """Create a full table with a learner that keeps its stream open and is idle."""
    workload = replace(WORKLOADS["cartpole"], name=f"table-{number}")
    table = full_table(client, workload)
    sampler = stack.enter_context(table.sampler(workload.batch_size, beta=_BETA))
    next(sampler)


def _cpu_share(process: psutil.Process, seconds: float) -> float:
    """Return how much CPU time a process uses, in percent of a core."""
    time.sleep(_SETTLE_S)
    before, began = process.cpu_times(), time.perf_counter()
    time.sleep(seconds)
    after = process.cpu_times()
    used = after.user + after.system - before.user - before.system
    return float(100 * used / (time.perf_counter() - began))


def _page(port: int) -> ExitStack:
    """Read the events of a live page until the returned stack is closed."""
    stack = ExitStack()
    connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
    connection.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")

    def read() -> None:
        while connection.recv(_RECEIVED_BYTES):
            pass

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    stack.callback(reader.join)
    stack.callback(connection.shutdown, socket.SHUT_RDWR)
    return stack


def _repeating(do: Callable[[], None]) -> ExitStack:
    """Call ``do`` each second until the returned stack is closed."""
    stack, stop = ExitStack(), threading.Event()

    def repeat() -> None:
        while not stop.wait(1.0):
            do()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    stack.callback(thread.join)
    stack.callback(stop.set)
    return stack


def scrape(port: int) -> None:
    """Read the metrics of a server."""
    with urllib.request.urlopen(f"http://localhost:{port}/metrics") as reply:
        reply.read()


if __name__ == "__main__":
    run_app(new_app("benchmarks.live_page", __doc__, main))
