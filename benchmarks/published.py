"""How long a reader takes for the newest weights, and what the actors of a run cost the server.

    python -m benchmarks.published [--floats 5_000_000] [--readers 8] [--actors 64] [--seconds 20]

Readers are processes on the server's host, or pretend that they are elsewhere. Each reads the newest publication a few
times, alone, and then whenever a new one comes, together with the others.
"""

from __future__ import annotations

import multiprocessing
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection
from threading import Event, Thread

import numpy as np
import psutil
import torch
from replay_agent.distributed.actor_guide import ActorGuide, Guidance
from replay_agent.distributed.published_run import PublishedRun
from replay_agent.distributed.run_tables import ActorTask, RunTables, hello
from replay_agent.dqn.networks import NetworkSpec
from replay_agent.settings.actor_settings import ActorSettings
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
_STEPS_PER_S, _CHECK_STEPS, _LEAD = 100, 50, 1_000
"""Of an Atari game with the usual network: an actor's speed, and the trainer's defaults."""


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
    """Return the share of a core that the server uses for a trainer and its actors, without their rows.

    New weights are published once per second, and each actor looks at the progress twice per second, as it does if it
    takes 100 steps per second.
    """
    weights = {"w": torch.zeros(_ACTOR_FLOATS)}
    spec = NetworkSpec((4,), "float32", actions=2, hidden_sizes=(4,), dueling=False)
    task = ActorTask(1, "CartPole-v1", _NAME, n_step=3, gamma=0.99, network=spec, seed=0, starts=0)
    began = time.monotonic()

    def guidance() -> Guidance:
        steps = int((time.monotonic() - began) * actors * _STEPS_PER_S)
        return Guidance(table=1, goal=steps + _LEAD, epsilon=0.1)

    with ExitStack() as stack:
        client = stack.enter_context(ReplayClient(address))
        guide = ActorGuide(client, _NAME, task, guidance, lead_steps=_LEAD, reconnect_timeout_s=60.0)
        stack.callback(guide.drop)
        stack.callback(guide.end, is_over=True)
        client[RunTables.of(_NAME).episodes].insert({key: [value] for key, value in hello(1, "actor").items()})
        guide.publish(weights)
        ended = Event()
        followers = [stack.enter_context(ReplayClient(address, same_host=same_host)) for _ in range(actors)]
        threads = [Thread(target=_follow, args=(follower, ended)) for follower in followers]
        for thread in threads:
            thread.start()
        time.sleep(2 * _PAUSE_S)
        process = psutil.Process(server)
        before, measured = process.cpu_times(), time.monotonic()
        while time.monotonic() - measured < seconds:
            guide.publish(weights)
            time.sleep(1.0)
        used = process.cpu_times()
        share = (used.user + used.system - before.user - before.system) / (time.monotonic() - measured)
        ended.set()
        for thread in threads:
            thread.join()
    return share


def _follow(client: ReplayClient, ended: Event) -> None:
    run = PublishedRun(client, _NAME, ended, ActorSettings())
    while not ended.wait(_CHECK_STEPS / _STEPS_PER_S):
        progress = run.progress(wait_s=0.0)
        if progress is not None:
            run.newer_weights(progress)


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
            f"actors, threads of one process, look at a run's progress twice per second, and read {_ACTOR_FLOATS:,} "
            "floats that are published once per second."
        ],
    )


def main(*, floats: int = 5_000_000, readers: int = 8, actors: int = 64, seconds: float = 20.0) -> None:
    """Measure published weights.

    Args:
        floats: float32 numbers in a publication.
        readers: processes that read it.
        actors: actors of a run.
        seconds: how long these are followed.
    """
    measure(floats, readers, actors, seconds).show(Console())


if __name__ == "__main__":
    run_app(new_app("benchmarks.published", __doc__, main))
