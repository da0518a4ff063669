"""Tables of steps, compared with tables of whole transitions: learner steps, writing, sequences, memory.

python -m benchmarks.compact atari
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Final, Literal

import numpy as np
import psutil
from numpy.typing import NDArray
from replay_client import (
    Column,
    Discount,
    Mask,
    Next,
    ReplayClient,
    Return,
    Sequences,
    Stack,
    Table,
    Transitions,
    Writer,
)
from replay_proto.command_line import new_app, run_app
from rich.console import Console

from benchmarks.contestants import ROUNDS, WINDOW_S, Window, take_turns
from benchmarks.learner_step import BETA, sampler_steps, touch, us_per_step
from benchmarks.memory import resident_bytes
from benchmarks.report import Section, spread
from benchmarks.service import full_table, running_server
from benchmarks.workloads import ATARI, WORKLOADS, Workload

STREAMS: Final = 8
EPISODE: Final = 1000
"""Steps of an episode."""
FRAME: Final = Column("uint8", (84 * 84,), sampled=False)
SEQUENCE: Final = Sequences(length=81, burn_in=40, period=40, gamma=0.997)
SEQUENCES_DRAWN: Final = 64
_PREFETCH: Final = 3
_VECTOR: Final = 64
"""Environments of a vectorized actor."""
_MILLION: Final = 1_000_000


def columns_of(workload: Workload) -> dict[str, Any]:
    """Columns that give a learner what the workload's transitions have."""
    common = {
        "action": Column("int64"),
        "reward": Column("float32", sampled=False),
        "n_return": Return("reward"),
        "discount": Discount(),
    }
    if workload is not ATARI:
        return {"frame": workload.obs, "next_obs": Next("frame"), **common}
    return {"frame": FRAME, "obs": Stack("frame", 4), "next_obs": Stack("frame", 4, ahead=True), **common}


def some_steps(table: Table, count: int) -> dict[str, NDArray[Any]]:
    """Random values of every stored column, ``dtype[count, *shape]``."""
    rng = np.random.default_rng(0)
    return {
        name: rng.integers(0, 200, (count, *column.shape)).astype(column.dtype) for name, column in table.schema.items()
    }


def write_steps(table: Table, rows: int, streams: int = STREAMS) -> None:
    """Write about so many rows, in episodes of `EPISODE` steps."""
    steps = some_steps(table, streams)
    done = np.ones(streams, bool)
    with table.writer(streams=streams) as writer:
        for number in range(-(-rows // streams)):
            writer.append_all(steps)
            if number % EPISODE == EPISODE - 1:
                writer.end_episodes(done, steps, terminated=done)


def step_table(client: ReplayClient, workload: Workload, n_step: int) -> Table:
    """A table of steps of the workload, filled until its ring has wrapped."""
    name = f"{workload.name}-{n_step}"
    table = client.create_table(
        name, columns=columns_of(workload), capacity=workload.capacity, steps=Transitions(n_step=n_step, gamma=0.99)
    )
    write_steps(table, table.slots + workload.capacity // 50)
    return table


def measure_steps(workload: Workload, rounds: int = ROUNDS, window_s: float = WINDOW_S) -> Section:
    """Learner steps on one host and over gRPC."""
    with ExitStack() as stack:
        address, _ = stack.enter_context(running_server())
        near = stack.enter_context(ReplayClient(address))
        far = stack.enter_context(ReplayClient(address, same_host=False))
        tables = {"transitions": full_table(near, workload).name}
        tables |= {f"steps, n = {n_step}": step_table(near, workload, n_step).name for n_step in (1, 3)}
        contestants: dict[str, Window] = {}
        for path, client in (("one host", near), ("gRPC", far)):
            for kind, name in tables.items():
                contestants[f"{kind}, {path}"] = sampler_steps(client.table(name), workload, _PREFETCH)
        times = take_turns(contestants, rounds, window_s)
        sent = {name: _bytes_per_step(window) if "gRPC" in name else None for name, window in contestants.items()}
    medians = {name: statistics.median(values) for name, values in times.items()}
    rows = []
    for name, values in times.items():
        base = f"transitions, {name.rpartition(', ')[2]}"
        kilobytes = sent[name]
        wire = "" if kilobytes is None else f"{kilobytes:,.0f}"
        rows.append([name, spread(values), f"{medians[name] / medians[base]:.2f}", wire])
    return Section(
        title=f"Tables of steps, {workload.name}: learner steps, batches of {workload.batch_size}",
        command=f"python -m benchmarks.compact {workload.name}",
        header=["table", "us per step", "ratio to transitions", "KB per step on the wire"],
        rows=rows,
        notes=[f"Samplers with prefetch {_PREFETCH}; the contestants take turns, {rounds} windows of {window_s:g} s."],
    )


def measure_writing(rounds: int = ROUNDS, window_s: float = WINDOW_S) -> Section:
    """The actor's time per step, and the throughput of one writer after the ring has wrapped."""
    with running_server() as (address, _), ReplayClient(address) as client:
        table = step_table(client, ATARI, 1)
        appends, vectors = list(_append_us(table, 1)), list(_append_us(table, _VECTOR))
        arriving = [_steps_per_second(table, window_s) for _ in range(rounds)]
    return Section(
        title="Tables of steps, atari: writing",
        command="python -m benchmarks.compact writing",
        header=["figure", "value"],
        rows=[
            ["append, us", spread(appends)],
            [f"append_all of {_VECTOR} streams, us per row", spread(vectors)],
            [f"one writer, {_VECTOR} streams, steps/s", spread(arriving)],
        ],
    )


def measure_sequences(rounds: int = ROUNDS, window_s: float = WINDOW_S) -> Section:
    """Batches of R2D2 on one host, compared with one `np.take` of as many frames into warm memory."""
    columns: dict[str, Any] = {
        "frame": Column("uint8", (84 * 84,)),
        "action": Column("int64"),
        "reward": Column("float32"),
        "discount": Discount(),
        "mask": Mask(),
    }
    with ExitStack() as stack:
        address, _ = stack.enter_context(running_server())
        client = stack.enter_context(ReplayClient(address))
        table = client.create_table("r2d2", columns=columns, capacity=ATARI.capacity, steps=SEQUENCE)
        write_steps(table, table.slots + ATARI.capacity // 50)
        times = take_turns(
            {"sampler": _sequence_steps(table), "np.take of the frames": _takes(table)}, rounds, window_s
        )
    base = statistics.median(times["np.take of the frames"])
    return Section(
        title=f"Tables of steps: {SEQUENCES_DRAWN} sequences of {SEQUENCE.burn_in + SEQUENCE.length} frames",
        command="python -m benchmarks.compact sequences",
        header=["contestant", "us per batch", "ratio"],
        rows=[[name, spread(values), f"{statistics.median(values) / base:.2f}"] for name, values in times.items()],
    )


def measure_memory() -> Section:
    """Memory and files of a million drawable Atari transitions."""
    with running_server() as (address, pid), ReplayClient(address) as client:
        process = psutil.Process(pid)
        empty = resident_bytes(process)
        # One row more per episode closes it; a few rows at the ring's end have no complete window.
        capacity = _MILLION + _MILLION // EPISODE + 100 * STREAMS
        table = client.create_table(
            "million", columns=columns_of(ATARI), capacity=capacity, steps=Transitions(n_step=1)
        )
        write_steps(table, table.slots + capacity // 50)
        steps = table.stats().steps
        assert steps is not None
        added = resident_bytes(process) - empty
    return Section(
        title="Tables of steps, atari: memory",
        command="python -m benchmarks.compact memory",
        header=["figure", "value"],
        rows=[["drawable transitions", f"{steps.drawable:,}"], ["memory and files, GB", f"{added / 1e9:.2f}"]],
        notes=["Frames of 84 x 84, stacks of 4 and the next stack, episodes of 1,000 steps."],
    )


def _bytes_per_step(window: Window) -> float:
    """Kilobytes that the loopback interface carries per step, in a second."""
    before = psutil.net_io_counters(pernic=True)["lo"].bytes_sent
    us = window(1.0)
    sent = psutil.net_io_counters(pernic=True)["lo"].bytes_sent - before
    return sent / (1e6 / us) / 1e3


def _append_us(table: Table, streams: int) -> Iterator[float]:
    """Microseconds of the actor's time per row, in bursts so small that it never waits."""
    steps = some_steps(table, streams)
    one = {name: values[0] for name, values in steps.items()}
    bursts = max(1, 512 // streams)

    def append(writer: Writer) -> None:
        if streams == 1:
            writer.append(one)
        else:
            writer.append_all(steps)

    with table.writer(streams=streams) as writer:
        for _ in range(50):
            began = time.perf_counter()
            for _ in range(bursts):
                append(writer)
            yield (time.perf_counter() - began) / (bursts * streams) * 1e6
            writer.flush()


def _steps_per_second(table: Table, window_s: float) -> float:
    steps = some_steps(table, _VECTOR)
    with table.writer(streams=_VECTOR) as writer:
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < window_s:
            writer.append_all(steps)
            count += _VECTOR
        writer.flush()
        return count / (time.perf_counter() - began)


def _sequence_steps(table: Table) -> Window:
    def window(window_s: float) -> float:
        with table.sampler(SEQUENCES_DRAWN, beta=BETA, prefetch=_PREFETCH) as sampler:
            return us_per_step(lambda: _ignore(touch(next(sampler))), window_s)

    return window


def _takes(table: Table) -> Window:
    """Copies the frames of as many sequences from the places where they are in the table's ring."""
    frames = np.ones((table.slots, 84 * 84), np.uint8)
    in_order = np.concatenate([rows.row_keys for rows in table.rows(order="episode")]) % table.slots
    length = SEQUENCE.burn_in + SEQUENCE.length
    buffers = [np.ones((SEQUENCES_DRAWN * length, 84 * 84), np.uint8) for _ in range(2)]
    rng = np.random.default_rng(1)
    turn = iter(_alternating(len(buffers)))

    def step() -> None:
        starts = rng.integers(0, len(in_order) - length, SEQUENCES_DRAWN)
        rows = in_order[(starts[:, None] + np.arange(length)).ravel()]
        np.take(frames, rows, axis=0, out=buffers[next(turn)], mode="clip")

    return lambda window_s: us_per_step(step, window_s)


def _alternating(count: int) -> Iterator[int]:
    while True:
        yield from range(count)


def _ignore(_: object) -> None:
    pass


_PARTS: Final[Mapping[str, Callable[..., Section]]] = {
    "writing": measure_writing,
    "sequences": measure_sequences,
}


def main(
    what: Literal["atari", "cartpole", "writing", "sequences", "memory"],
    /,
    *,
    rounds: int = ROUNDS,
    window_s: float = WINDOW_S,
) -> None:
    """Measure one subject.

    Args:
        what: learner steps of a workload, or another subject. ``memory`` needs 8 GB.
        rounds: measurements of each contestant.
        window_s: seconds of a measurement.
    """
    if what == "memory":
        section = measure_memory()
    elif what in _PARTS:
        section = _PARTS[what](rounds, window_s)
    else:
        section = measure_steps(WORKLOADS[what], rounds, window_s)
    section.show(Console())


if __name__ == "__main__":
    run_app(new_app("python -m benchmarks.compact", __doc__, main))
