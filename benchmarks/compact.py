"""Tables of steps, compared with tables of whole transitions: learner steps, writing, sequences, memory.

python -m benchmarks.compact atari [--peers FOLDER]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
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

from benchmarks.contestants import REVERB, ROUNDS, WINDOW_S, Window, start_reverb, take_turns
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
MEMORY_NEEDED: Final = 10_000_000_000
"""Bytes of memory that must be free for `measure_memory`."""
_PEERS: Final = Path(".peers")


def columns_of(workload: Workload) -> dict[str, Any]:
    """Return the columns of a table of steps whose batches contain the same as the workload's transitions."""
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
    """Return random values for every stored column, ``dtype[count, *shape]``."""
    rng = np.random.default_rng(0)
    return {
        name: rng.integers(0, 200, (count, *column.shape)).astype(column.dtype) for name, column in table.schema.items()
    }


def write_steps(table: Table, rows: int, streams: int = STREAMS) -> None:
    """Write about this many rows, in episodes of `EPISODE` steps."""
    steps = some_steps(table, streams)
    done = np.ones(streams, bool)
    with table.writer(streams=streams) as writer:
        for number in range(-(-rows // streams)):
            writer.append_all(steps)
            if number % EPISODE == EPISODE - 1:
                writer.end_episodes(done, steps, terminated=done)


def step_table(client: ReplayClient, workload: Workload, n_step: int) -> Table:
    """Create a table of steps for a workload, and fill it until its ring has wrapped."""
    name = f"{workload.name}-{n_step}"
    table = client.create_table(
        name, columns=columns_of(workload), capacity=workload.capacity, steps=Transitions(n_step=n_step, gamma=0.99)
    )
    write_steps(table, table.slots + workload.capacity // 50)
    return table


def measure_steps(
    workload: Workload, peers: Path = _PEERS, rounds: int = ROUNDS, window_s: float = WINDOW_S
) -> Section:
    """Measure learner steps on one host and over gRPC and, if the workload has frames, those of Reverb."""
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
        reverb = start_reverb(stack, workload.name, peers, "steps") if workload is ATARI else {}
        contestants |= reverb
        times = take_turns(contestants, rounds, window_s)
        sent = {name: _kilobytes_per_step(window) for name, window in contestants.items() if "one host" not in name}
    notes = [
        f"Samplers have a prefetch of {_PREFETCH}.",
        f"{rounds} rounds with windows of {window_s:g} s; the contestants take turns.",
        "`transitions` stores whole transitions, `steps` stores each step once and draws transitions over n steps.",
    ]
    if workload is ATARI:
        notes.append("Batches have stacks of 4 frames of 84 x 84. `steps` and Reverb store each frame once.")
    notes += [_about_reverb(peer.facts) for peer in reverb.values()]
    return Section(
        title=f"Tables of steps, {workload.name}: learner steps, batches of {workload.batch_size}",
        command=f"python -m benchmarks.compact {workload.name}",
        header=[
            "table",
            "us per step",
            "ratio to transitions",
            *(f"ratio to {name}" for name in reverb),
            "KB per step on the wire",
        ],
        rows=step_rows(times, sent),
        notes=notes,
    )


def step_rows(times: Mapping[str, Sequence[float]], sent: Mapping[str, float]) -> list[list[str]]:
    """Return the rows of the table of learner steps.

    Args:
        times: microseconds per step in each round, by contestant. The names of peers contain no path; all others are
            ``"KIND, PATH"``. Each is compared with ``"transitions, PATH"`` for the same path.
        sent: kilobytes per step, for contestants that use the network.
    """
    medians = {name: statistics.median(values) for name, values in times.items()}

    def ratio(name: str, base: str) -> str:
        return f"{medians[name] / medians[base]:.3f}" if base in medians else ""

    return [
        [
            name,
            spread(values),
            ratio(name, f"transitions, {name.rpartition(', ')[2]}"),
            *([ratio(name, REVERB)] if REVERB in times else []),
            f"{sent[name]:,.0f}" if name in sent else "",
        ]
        for name, values in times.items()
    ]


def measure_writing(rounds: int = ROUNDS, window_s: float = WINDOW_S) -> Section:
    """Measure the actor's time per step, and the throughput of one writer after the ring has wrapped."""
    with running_server() as (address, _), ReplayClient(address) as client:
        table = step_table(client, ATARI, 1)
        row_bytes = table.schema.row_bytes
        appends, vectors = list(_append_us(table, 1)), list(_append_us(table, _VECTOR))
        arriving = [_steps_per_second(table, window_s) for _ in range(rounds)]
    return Section(
        title="Tables of steps, atari: writing",
        command="python -m benchmarks.compact writing",
        header=["figure", "value"],
        rows=[
            ["time of `append` in short bursts, us per step", spread(appends)],
            [f"time of `append_all` of {_VECTOR} streams in short bursts, us per step", spread(vectors)],
            [f"steps arriving per second, one writer with {_VECTOR} streams", spread(arriving)],
            ["MB arriving per second", f"{statistics.median(arriving) * row_bytes / 1e6:.0f}"],
        ],
        notes=[
            "The actor writes steps with a frame of 84 x 84 into a full ring. Short bursts never fill the writer's "
            "blocks in flight, so `append` never waits."
        ],
    )


def measure_sequences(rounds: int = ROUNDS, window_s: float = WINDOW_S) -> Section:
    """Measure batches of R2D2 on one host and, for comparison, copies of as many frames by `np.take`."""
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
        rows=[[name, spread(values), f"{statistics.median(values) / base:.3f}"] for name, values in times.items()],
        notes=[
            f"A sampler on one host, with prefetch {_PREFETCH}, draws sequences as R2D2 does: {SEQUENCE.burn_in} steps "
            f"of burn-in, {SEQUENCE.length} to learn from. Frames have 84 x 84 bytes. `np.take` copies as many frames "
            f"of consecutive steps from memory, and nothing else. {rounds} rounds with windows of {window_s:g} s; the "
            "contestants take turns."
        ],
    )


def measure_memory() -> Section:
    """Measure the memory, including files, of a million drawable Atari transitions; needs `MEMORY_NEEDED`."""
    with running_server() as (address, pid), ReplayClient(address) as client:
        process = psutil.Process(pid)
        empty = resident_bytes(process)
        # Each episode has an additional row that closes it; a few rows at the ring's end have no complete window.
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
        notes=[
            f"Each transition has a stack of 4 frames of 84 x 84 and the stack one step later; episodes have "
            f"{EPISODE:,} steps. The table shows by how much the memory of an empty server, including mapped files, "
            f"grows when the table is filled. Stored as whole transitions, the same data would take "
            f"{steps.drawable * ATARI.row_bytes / 1e9:.1f} GB."
        ],
    )


def measure_all(peers: Path, rounds: int, window_s: float) -> Iterator[Section]:
    """Measure all subjects; `measure_memory` is skipped if too little memory is free."""
    for workload in WORKLOADS.values():
        yield measure_steps(workload, peers, rounds, window_s)
    yield measure_writing(rounds, window_s)
    yield measure_sequences(rounds, window_s)
    if psutil.virtual_memory().available >= MEMORY_NEEDED:
        yield measure_memory()


def _about_reverb(facts: Mapping[str, float]) -> str:
    workers = "chosen by Reverb" if facts["workers"] < 0 else f"{facts['workers']:.0f}"
    return (
        f"In {REVERB}, an item refers to a stack and the next one (n = 1), and items share chunks of frames. It is "
        f"measured with the fastest of several settings: chunk length: {facts['chunk_length']:.0f}, workers per "
        f"iterator: {workers}, batches in flight per worker: {facts['in_flight']:.0f}."
    )


def _kilobytes_per_step(window: Window) -> float:
    """Return the kilobytes that the loopback interface carries per step, measured over one second."""
    before = psutil.net_io_counters(pernic=True)["lo"].bytes_sent
    us = window(1.0)
    sent = psutil.net_io_counters(pernic=True)["lo"].bytes_sent - before
    return sent / (1e6 / us) / 1e3


def _append_us(table: Table, streams: int) -> Iterator[float]:
    """Yield the actor's time per row in microseconds, by burst. Bursts are so small that the actor never waits."""
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
    """Return a function that measures copies of a batch's frames from an array laid out like the table's ring."""
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


def main(
    what: Literal["atari", "cartpole", "writing", "sequences", "memory"],
    /,
    *,
    peers: Path = _PEERS,
    rounds: int = ROUNDS,
    window_s: float = WINDOW_S,
) -> None:
    """Measure one subject.

    Args:
        what: subject; the name of a workload means its learner steps. ``memory`` needs 10 GB.
        peers: folder into which benchmarks/peers/install.sh has installed the peers.
        rounds: measurements of each contestant.
        window_s: seconds of a measurement.
    """
    if what == "memory":
        section = measure_memory()
    elif what == "writing":
        section = measure_writing(rounds, window_s)
    elif what == "sequences":
        section = measure_sequences(rounds, window_s)
    else:
        section = measure_steps(WORKLOADS[what], peers, rounds, window_s)
    section.show(Console())


if __name__ == "__main__":
    run_app(new_app("python -m benchmarks.compact", __doc__, main))
