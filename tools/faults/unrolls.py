"""Unrolls of several streams pass through a queue, while its server is killed again and again.

    python -m tools.faults.unrolls [--steps 1_000_000] [--consumers 3] [--kills 30]

Each unroll must arrive once, whole, and at each consumer after the earlier ones of its stream.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from replay_client import Column, Mask, ReplayClient, Sequences, Table
from replay_proto.command_line import new_app, run_app
from replay_proto.steps import Derived
from rich.console import Console

from tests.support.server_process import ServerProcess

LENGTH: Final = 20
STREAMS: Final = 8
BATCH: Final = 4
PREFETCH: Final = 2
CAPACITY: Final = 4_000
_PATIENCE_S: Final = 120.0
_MARKER: Final = -2
"""The only step of an unroll that says that no others follow. A queue keeps the order, so it comes last."""


@dataclass
class Unrolls:
    """What has passed through the queue."""

    sent: list[tuple[int, ...]] = field(default_factory=list)
    """The values of each unroll."""
    received: list[list[tuple[int, ...]]] = field(default_factory=list)
    """Those of each unroll that arrived, for each consumer."""

    def faults(self) -> list[str]:
        """Describe what must not be."""
        found = []
        values = [values for each in self.received for values in each]
        if len(set(values)) != len(values):
            found.append(f"{len(values) - len(set(values))} unrolls arrived twice")
        strange = set(values) - set(self.sent)
        if strange:
            found.append(f"{len(strange)} unrolls were never sent, such as {min(strange)}")
        for number, each in enumerate(self.received):
            by_stream = sorted(each, key=lambda values: values[0] % STREAMS)  # otherwise in the order of arrival
            if by_stream != sorted(each, key=lambda values: (values[0] % STREAMS, values[0])):
                found.append(f"consumer {number} got unrolls out of order")
        lost = set(self.sent) - set(values)
        if lost:
            found.append(f"{len(lost)} unrolls are missing, such as {min(lost)}")
        return found

    @property
    def lost(self) -> int:
        """Unrolls that did not arrive."""
        return len(self.sent) - sum(map(len, self.received))


def pass_through(
    server: ServerProcess, steps: int, consumers: int, kills: int, seed: int, note: Callable[[int], None]
) -> Unrolls:
    """Send this many steps through a queue; ``note`` is called with the number sent."""
    found = Unrolls(received=[[] for _ in range(consumers)])
    with ExitStack() as stack:
        client = stack.enter_context(ReplayClient(server.address, timeout_s=_PATIENCE_S))
        columns: dict[str, Column | Derived] = {"step": Column("int64"), "mask": Mask()}
        table = client.create_table(
            "unrolls", columns=columns, capacity=CAPACITY, backend="fifo", steps=Sequences(length=LENGTH, period=LENGTH)
        )
        threads = [threading.Thread(target=_consume, args=(server, each)) for each in found.received]
        for thread in threads:
            thread.start()
        _write(table, server, steps, kills, random.Random(seed), found, note)
        for thread in threads:
            thread.join()
    return found


def _write(
    table: Table,
    server: ServerProcess,
    steps: int,
    kills: int,
    rng: random.Random,
    found: Unrolls,
    note: Callable[[int], None],
) -> None:
    """Append the steps of all streams in turn, and kill the server now and then."""
    kill_at = sorted(rng.sample(range(1, steps), kills))
    open_unrolls: list[list[int]] = [[] for _ in range(STREAMS)]
    open_episodes: set[int] = set()  # streams
    with table.writer(streams=STREAMS, reconnect_timeout_s=_PATIENCE_S) as writer:
        for step in range(steps):
            stream = step % STREAMS
            if kill_at and step == kill_at[0]:
                del kill_at[0]
                server.kill()
                server.restart()
                note(step)
            writer[stream].append(step=step)
            open_unrolls[stream].append(step)
            open_episodes.add(stream)
            ends = rng.random() < 0.01
            if ends:
                writer[stream].end_episode(step=-1, terminated=rng.random() < 0.5)
                open_episodes.remove(stream)
            if ends or len(open_unrolls[stream]) == LENGTH:
                found.sent.append(tuple(open_unrolls[stream]))
                open_unrolls[stream] = []
        # Complete the last unroll of each stream, which lacks the row after its last step.
        for stream in open_episodes:
            writer[stream].end_episode(step=-1)
        found.sent += [tuple(steps) for steps in open_unrolls if steps]
        writer.flush(timeout_s=_PATIENCE_S)  # within a block, rows are in the order of streams
        # A consumer that has seen a marker leaves those in flight behind.
        for _ in range(len(found.received) * (PREFETCH + 2) * BATCH):
            writer[0].append(step=_MARKER)
            writer[0].end_episode(step=-1)
        writer.flush(timeout_s=_PATIENCE_S)


def _consume(server: ServerProcess, received: list[tuple[int, ...]]) -> None:
    with (
        ReplayClient(server.address, timeout_s=_PATIENCE_S) as client,
        client["unrolls"].sampler(BATCH, prefetch=PREFETCH, reconnect_timeout_s=_PATIENCE_S) as sampler,
    ):
        for batch in sampler:
            for values, mask in zip(batch["step"], batch["mask"].astype(bool), strict=True):
                if values[0] == _MARKER:
                    return
                received.append(tuple(values[mask].tolist()))


def main(*, steps: int = 1_000_000, consumers: int = 3, kills: int = 30, seed: int = 0) -> int:
    """Send steps through a queue.

    Args:
        steps: environment steps.
        consumers: samplers that take unrolls.
        kills: how often the server is killed.
        seed: of episodes and kills.
    """
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        server = ServerProcess(Path(folder) / "log", "--data-dir", f"{folder}/data", forked=False)
        try:
            began = time.monotonic()
            found = pass_through(
                server, steps, consumers, kills, seed, lambda step: console.print(f"killed at {step:,}")
            )
        finally:
            server.terminate()
    console.print(
        f"{len(found.sent):,} unrolls of {steps:,} steps, {found.lost} lost in {kills} kills, "
        f"{time.monotonic() - began:.0f} s"
    )
    for fault in found.faults():
        console.print(fault)
    return 1 if found.faults() else 0


if __name__ == "__main__":
    sys.exit(run_app(new_app("tools.faults.unrolls", __doc__, main)))
