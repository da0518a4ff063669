"""How long a reader takes for the newest weights, and what many readers that wait for them cost the server.

    python -m benchmarks.published [--floats 5_000_000] [--readers 8] [--actors 64] [--seconds 20]

Readers are processes on the server's host, or pretend that they are elsewhere. Each reads the newest publication a few
times, alone, and then whenever a new one comes, together with the others.
"""

from __future__ import annotations

import multiprocessing
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection
from threading import Thread

import numpy as np
import psutil
from replay_client import ReplayClient
from replay_proto.command_line import new_app, run_app
from rich.console import Console

from benchmarks.report import Section, spread
from benchmarks.service import running_server

_SPAWNING = multiprocessing.get_context("spawn")
_NAME = "policy"
_ALONE = 10
_TOGETHER = 10
_PAUSE_S = 0.5
_MS_PER_S = 1e3
_ACTOR_FLOATS = 1_700_000


def latencies(address: str, floats: int, readers: int, *, same_host: bool) -> tuple[list[float], list[float]]:
    """Measure `latest` in milliseconds: by one reader after another, and by all when something new comes."""
    with ExitStack() as stack:
        client = stack.enter_context(ReplayClient(address))
        weights = {"w": np.zeros(floats, np.float32)}
        client.publish(_NAME, weights)
        pipes = [_reader(stack, address, same_host) for _ in range(readers)]
        alone = []
        for pipe in pipes:
            for _ in range(_ALONE):
                pipe.send(None)
                alone.append(pipe.recv())
        together = []
        for number in range(_TOGETHER):
            for pipe in pipes:
                pipe.send(number + 1)
            time.sleep(_PAUSE_S)  # all of them wait
            weights["w"][:] = number
            client.publish(_NAME, weights)
            published = time.time()
            together += [(pipe.recv() - published) * _MS_PER_S for pipe in pipes]
        client.drop_table(_NAME)
    return alone, together


def _reader(stack: ExitStack, address: str, same_host: bool) -> Connection:
    mine, theirs = _SPAWNING.Pipe()
    process = _SPAWNING.Process(target=_read, args=(theirs, address, same_host), daemon=True)
    process.start()
    stack.callback(process.terminate)
    mine.recv()  # it is ready
    return mine


def _read(pipe: Connection, address: str, same_host: bool) -> None:
    """For each None, read the newest publication and tell the time; for each version, tell when another one came."""
    with ReplayClient(address, same_host=same_host) as client:
        for _ in range(3):
            client.latest(_NAME)
        pipe.send(None)
        while True:
            known = pipe.recv()
            began = time.perf_counter()
            client.latest(_NAME, wait_newer=known)
            pipe.send((time.perf_counter() - began) * _MS_PER_S if known is None else time.time())


def server_share(address: str, server: int, actors: int, seconds: float, *, same_host: bool) -> float:
    """Return the share of a core that the server uses while this many actors follow one publication per second."""
    with ExitStack() as stack:
        client = stack.enter_context(ReplayClient(address))
        weights = {"w": np.zeros(_ACTOR_FLOATS, np.float32)}
        client.publish(_NAME, weights)
        followers = [ReplayClient(address, same_host=same_host) for _ in range(actors)]
        for follower in followers:
            Thread(target=_follow, args=(follower,), daemon=True).start()
        time.sleep(2 * _PAUSE_S)
        process = psutil.Process(server)
        before, began = process.cpu_times(), time.monotonic()
        while time.monotonic() - began < seconds:
            client.publish(_NAME, weights)
            time.sleep(1.0)
        used = process.cpu_times()
        share = (used.user + used.system - before.user - before.system) / (time.monotonic() - began)
        for follower in followers:
            follower.close()
        client.drop_table(_NAME)
    return share


def _follow(client: ReplayClient) -> None:
    version = None
    while True:
        try:
            version = client.latest(_NAME, wait_newer=version, timeout_s=60.0).version
        except Exception:
            return  # the client was closed


def measure(floats: int, readers: int, actors: int, seconds: float) -> Section:
    """Measure readers on the server's host, and elsewhere."""
    rows = []
    with running_server() as (address, server):
        for where, same_host in (("on the server's host", True), ("elsewhere", False)):
            alone, together = latencies(address, floats, readers, same_host=same_host)
            share = server_share(address, server, actors, seconds, same_host=same_host)
            rows.append([where, spread(alone), spread(together), f"{max(together):.1f}", f"{share:.1%}"])
    return Section(
        title=f"Published weights: {floats:,} floats, {readers} readers; {actors} actors",
        command=f"python -m benchmarks.published --floats {floats} --readers {readers} --actors {actors} "
        f"--seconds {seconds}",
        header=["readers", "ms, one at a time", "ms after publish, together", "the last of them", "server, of a core"],
        rows=rows,
        notes=[
            "Medians with quartiles, and the largest. The share of a core is that of the server's process while all "
            f"actors, threads of one process, follow {_ACTOR_FLOATS:,} floats that are published once per second."
        ],
    )


def main(*, floats: int = 5_000_000, readers: int = 8, actors: int = 64, seconds: float = 20.0) -> None:
    """Measure published weights.

    Args:
        floats: float32 numbers in a publication.
        readers: processes that read it.
        actors: clients that follow smaller publications.
        seconds: how long these are followed.
    """
    measure(floats, readers, actors, seconds).show(Console())


if __name__ == "__main__":
    run_app(new_app("benchmarks.published", __doc__, main))
