"""Cost and behaviour of a table over several servers, compared with one server.

    python -m benchmarks.shards

All servers and the learner share this machine, so wall times say less than the learner's CPU time.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
from replay_client import Column, ReplayClient, ShardedTable, Table
from replay_client._shards.keys import shard_ids
from replay_client.draws import Prefetch
from replay_proto.command_line import new_app, run_app
from rich.console import Console
from scipy import stats

from benchmarks.contestants import ROUNDS
from benchmarks.learner_step import BETA, touch
from benchmarks.report import Section, spread
from benchmarks.service import running_server
from benchmarks.workloads import CARTPOLE
from tests.support.server_process import ServerProcess

SETTINGS: tuple[tuple[int, Prefetch], ...] = ((1, 3), (3, 3), (1, 16), (4, 16))
"""Number of servers, and batches in flight. Each setting with several servers follows the one with a single server that
it is compared with."""
WINDOW_S = 1.0
_ROWS = 1 << 16
_WORKLOAD = replace(CARTPOLE, capacity=_ROWS)
_AT_ONCE = 1024
_US_PER_S = 1e6


def started(stack: ExitStack, servers: int, *flags: str) -> tuple[ReplayClient, Table]:
    """Start servers that share a table, and fill the table."""
    addresses = [stack.enter_context(running_server(*flags))[0] for _ in range(servers)]
    client = stack.enter_context(ReplayClient(",".join(addresses)))
    table = client.create_table(_WORKLOAD.name, columns=_WORKLOAD.columns, capacity=_ROWS)
    rng = np.random.default_rng(0)
    rows = _WORKLOAD.rows(_AT_ONCE, rng)
    for _ in range(0, _ROWS, _AT_ONCE):
        table.insert(rows, priorities=rng.random(_AT_ONCE) + 0.1)
    return client, table


def steps(table: Table, prefetch: Prefetch) -> Callable[[float], tuple[float, float]]:
    """Return a function that takes a number of seconds, and returns wall and CPU time per step in microseconds."""
    rng = np.random.default_rng(1)

    def window(window_s: float) -> tuple[float, float]:
        with table.sampler(_WORKLOAD.batch_size, beta=BETA, prefetch=prefetch) as sampler:
            for _ in range(20):
                next(sampler)
            count, began, cpu_s = 0, time.perf_counter(), time.process_time()
            while (elapsed_s := time.perf_counter() - began) < window_s:
                batch = next(sampler)
                touch(batch)
                sampler.update_priorities(batch, rng.random(_WORKLOAD.batch_size) + 0.1)
                count += 1
            return elapsed_s / count * _US_PER_S, (time.process_time() - cpu_s) / count * _US_PER_S

    return window


def measure(rounds: int = ROUNDS, window_s: float = WINDOW_S) -> Section:
    """Measure learner steps over one and several servers in turn."""
    with ExitStack() as stack:
        tables = {count: started(stack, count)[1] for count in sorted({servers for servers, _ in SETTINGS})}
        windows = [steps(tables[servers], prefetch) for servers, prefetch in SETTINGS]
        times = [[window(window_s) for window in windows] for _ in range(rounds)]
    rows = []
    for number, (servers, prefetch) in enumerate(SETTINGS):
        of_one = number - number % 2
        wall, cpu = ([turn[number][part] for turn in times] for part in (0, 1))
        ratios = [statistics.median(turn[number][part] / turn[of_one][part] for turn in times) for part in (0, 1)]
        rows.append([str(servers), str(prefetch), spread(wall), spread(cpu), *(f"{ratio:.2f}" for ratio in ratios)])
    return Section(
        title="Tables over several servers: a learner step",
        command="python -m benchmarks.shards",
        header=["servers", "prefetch", "wall, us", "learner's CPU, us", "wall / one server", "CPU / one server"],
        rows=rows,
        notes=["CartPole rows, batches of 256. Ratios are medians of those within each round."],
    )


def outage() -> Section:
    """Kill and restart one of three durable servers while a learner draws; also call `fullest_over_mean`."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        servers = [
            ServerProcess(Path(folder) / f"log-{number}", "--data-dir", f"{folder}/data-{number}")
            for number in range(3)
        ]
        for server in servers:
            stack.callback(server.kill)
        client = stack.enter_context(ReplayClient(",".join(server.address for server in servers)))
        table = client.create_table("t", columns={"x": Column("int64")}, capacity=30_000, alpha=1.0, epsilon=0.0)
        assert isinstance(table, ShardedTable)
        priorities = np.random.default_rng(0).random(100) + 0.1
        for shard in table.shards.values():
            shard.insert({"x": np.arange(100)}, priorities=priorities)
        victim = max(servers, key=lambda server: server.address)  # has the last id
        sampler = stack.enter_context(table.sampler(64, beta=0.4, prefetch=3, draw_mode="independent"))
        for _ in range(50):
            next(sampler)
        victim.kill()
        longest_s, counts = 0.0, np.zeros(200, np.int64)
        for number in range(1000):
            began = time.perf_counter()
            batch = next(sampler)
            longest_s = max(longest_s, time.perf_counter() - began)
            if number >= 10:
                np.add.at(counts, shard_ids(batch.row_keys) * 100 + batch["x"], 1)
        exact = np.tile(priorities, 2) / priorities.sum() / 2
        p_value = float(stats.chisquare(counts, exact * counts.sum()).pvalue)
        victim.restart()
        began = time.perf_counter()
        while 2 not in shard_ids(next(sampler).row_keys):
            pass
        back_s = time.perf_counter() - began
    rows = [
        ["longest step of a learner", f"{longest_s:.2f} s"],
        ["chi-square of 63,000 draws of the other rows, p", f"{p_value:.3f}"],
        ["back in the draw after the server is ready", f"{back_s:.2f} s"],
        ["64 writers, 4 servers: fullest / mean", f"{fullest_over_mean():.3f}"],
    ]
    command = "python -m benchmarks.shards"
    return Section("Tables over several servers: kill -9 of one of three", command, ["what", "figure"], rows)


def fullest_over_mean() -> float:
    """Let 64 writers write episodes to four servers; return the rows of the fullest server divided by the mean."""
    random = np.random.default_rng(1)
    with ExitStack() as stack:
        addresses = [stack.enter_context(running_server())[0] for _ in range(4)]
        client = stack.enter_context(ReplayClient(",".join(addresses)))
        table = client.create_table("t", columns={"x": Column("int64")}, capacity=4_000_000)
        assert isinstance(table, ShardedTable)
        writers = [table.writer() for _ in range(64)]
        for _ in range(20):
            for writer in writers:
                for number in range(int(random.integers(5, 60))):
                    writer.append(x=number)
                writer.end_episode()
        for writer in writers:
            writer.close()
        sizes = [shard.size() for shard in table.shards.values()]
    return float(max(sizes) / np.mean(sizes))


def main(*, rounds: int = ROUNDS, window_s: float = WINDOW_S) -> None:
    """Measure and print.

    Args:
        rounds: how often each setting is measured.
        window_s: seconds of each measurement.
    """
    console = Console(width=160)
    measure(rounds, window_s).show(console)
    outage().show(console)


if __name__ == "__main__":
    run_app(new_app("python -m benchmarks.shards", __doc__, main))
