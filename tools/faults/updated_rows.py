"""Processes write mutable columns again, map them and take checkpoints, while their server is killed again and again.

    python -m tools.faults.updated_rows [--kills 200] [--rows 20_000]

The values of a row follow from one number. Nobody may see values of two numbers in one row, neither in replies, nor in
the server's files, nor in a checkpoint. An acknowledged number must stay until a larger one is sent.
"""

from __future__ import annotations

import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from queue import Empty
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from replay_client import Column, ReplayClient, ReplayError, Table
from replay_client.batch import Batch, Rows
from replay_proto.command_line import new_app, run_app
from rich.console import Console

from tests.support.server_process import ServerProcess

WRITERS: Final = 4
READERS: Final = 2
AT_ONCE: Final = 256
COLUMNS: Final = {
    "key": Column("int64"),
    "number": Column("int64", mutable=True),
    "state": Column("float32", 250, mutable=True),
    "flag": Column("uint8", 3, mutable=True),
}
_NAME: Final = "updated"
_PATIENCE_S: Final = 120.0


def values_of(numbers: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Return the mutable columns that belong to these numbers, int64[n]."""
    return {
        "number": numbers,
        "state": np.repeat(numbers[:, None].astype(np.float32), 250, axis=1),
        "flag": np.repeat((numbers[:, None] % 251).astype(np.uint8), 3, axis=1),
    }


def mixed(rows: Rows | Batch) -> str:
    """Describe rows with values of several numbers; empty if there are none."""
    keys = rows.row_keys
    if not np.array_equal(keys, rows["key"]):
        return f"rows {keys[keys != rows['key']][:5]} have values of other rows"
    for name, values in values_of(rows["number"]).items():
        differs = (values != rows[name]).reshape(len(keys), -1).any(axis=1)
        if differs.any():
            return f"rows {keys[differs][:5]} have a {name} that does not belong to their number"
    return ""


class Life:
    """Processes that use a table until they are told to stop."""

    def __init__(self, server: ServerProcess, rows: int) -> None:
        """Create a full table, and start the processes."""
        with ReplayClient(server.address) as client:
            table = client.create_table(_NAME, columns=COLUMNS, capacity=rows)
            keys = np.arange(rows)
            table.insert({"key": keys, **values_of(np.zeros(rows, np.int64))})
        context = multiprocessing.get_context("spawn")
        self._stop: Event = context.Event()
        self._told: Queue[tuple[str, int, str]] = context.Queue()
        self._ended: list[tuple[str, int, str]] = []
        work: list[Callable[..., None]] = [*[_write] * WRITERS, *[_read] * READERS, _checkpoint]
        ready = context.Barrier(len(work) + 1)
        self._processes = [
            context.Process(target=_until, args=(each, server.address, rows, number, ready, self._stop, self._told))
            for number, each in enumerate(work)
        ]
        for process in self._processes:
            process.start()
        ready.wait(_PATIENCE_S)

    def go_on(self, seconds: float) -> None:
        """Let the processes work.

        Raises:
            AssertionError: a process has found a fault.
        """
        with suppress(Empty):
            self._ended.append(self._told.get(timeout=seconds))
            raise AssertionError(self._ended[-1][2])

    def end(self) -> dict[str, int]:
        """Stop all processes, and return what each kind of them has done.

        Raises:
            AssertionError: a process has found a fault.
        """
        self._stop.set()
        left = self._processes[len(self._ended) :]
        told = [*self._ended, *(self._told.get(timeout=_PATIENCE_S) for _ in left)]
        for process in self._processes:
            process.join()
        faults = [fault for _, _, fault in told if fault]
        assert not faults, "\n".join(faults)
        done: dict[str, int] = {}
        for kind, count, _ in told:
            done[kind] = done.get(kind, 0) + count
        return done


def _until(
    work: Callable[..., Any],
    address: str,
    rows: int,
    number: int,
    ready: Barrier,
    stop: Event,
    told: Queue[tuple[str, int, str]],
) -> None:
    """Run in a process; tell how much was done, and the fault that ended it, if any."""
    done = [0]
    try:
        with ReplayClient(address, timeout_s=_PATIENCE_S) as client:
            table = client[_NAME]
            ready.wait(_PATIENCE_S)
            work(client, table, rows, number, stop, done)
        told.put((work.__name__, done[0], ""))
    except BaseException as error:
        told.put((work.__name__, done[0], f"{work.__name__} {number}: {type(error).__name__}: {error}"))
        raise


def _write(client: ReplayClient, table: Table, rows: int, number: int, stop: Event, done: list[int]) -> None:
    """Write rows of this process's own again, alone or on a sampler's stream, and read them back."""
    rng = np.random.default_rng(number)
    mine = np.arange(number, rows, WRITERS)
    acknowledged = np.zeros(rows, np.int64)
    sent = np.zeros(rows, np.int64)
    with table.sampler(1, reconnect_timeout_s=_PATIENCE_S) as sampler:
        while not stop.is_set():
            keys = rng.choice(mine, min(AT_ONCE, len(mine)), replace=False)
            sent[keys] += 1
            if rng.random() < 0.5:
                result = table.update(keys, values_of(sent[keys]))
                assert (result.updated, result.stale) == (len(keys), 0), result
            else:
                sampler.update(keys, values_of(sent[keys]))
                sampler.flush(timeout_s=_PATIENCE_S)
            acknowledged[keys] = sent[keys]
            done[0] += len(keys)
            back = table.read(rng.choice(mine, min(AT_ONCE, len(mine)), replace=False))
            assert not mixed(back), mixed(back)
            assert (back["number"] == acknowledged[back.row_keys]).all(), "an acknowledged update is lost"
        sampler.cancel()


def _read(client: ReplayClient, table: Table, rows: int, number: int, stop: Event, done: list[int]) -> None:
    """Draw and read rows from the server's files."""
    rng = np.random.default_rng(number)
    with table.sampler(AT_ONCE, reconnect_timeout_s=_PATIENCE_S) as sampler:
        while not stop.is_set():
            for found in (next(sampler), table.read(rng.integers(0, rows, AT_ONCE))):
                assert not mixed(found), mixed(found)
                done[0] += found.batch_size
        sampler.cancel()


def _checkpoint(client: ReplayClient, table: Table, rows: int, number: int, stop: Event, done: list[int]) -> None:
    """Take checkpoints one after another; those that a kill interrupts fail."""
    while not stop.is_set():
        with suppress(ReplayError):
            client.checkpoint(keep=3)
            done[0] += 1
        stop.wait(0.05)


def live(server: ServerProcess, rows: int, kills: int, seed: int, note: Callable[[int], None]) -> dict[str, int]:
    """Kill the server while all processes use it; return what they have done."""
    rng = random.Random(seed)
    life = Life(server, rows)
    try:
        for kill in range(kills):
            life.go_on(rng.uniform(0.1, 1.0))
            server.kill()
            server.restart()
            note(kill)
        life.go_on(0.5)
    finally:
        done = life.end()
    return done


def check_checkpoint(folder: Path, work: Path) -> int:
    """Restore a checkpoint, and return its number of rows.

    Raises:
        AssertionError: a row has values of several numbers.
    """
    flags = ("--data-dir", str(work / f"data-of-{folder.name}"), "--restore", str(folder))
    server = ServerProcess(work / f"log-of-{folder.name}", *flags, forked=False)
    try:
        with ReplayClient(server.address) as client:
            count = 0
            for found in client[_NAME].rows(chunk=4096):
                assert not mixed(found), f"in {folder.name}: {mixed(found)}"
                count += found.batch_size
            return count
    finally:
        server.terminate()


def main(*, kills: int = 200, rows: int = 20_000, seed: int = 0) -> int:
    """Kill a server whose rows are updated.

    Args:
        kills: how often the server is killed.
        rows: of the table, which is full.
        seed: of the moments of the kills.
    """
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "checkpoints"
        server = ServerProcess(
            *(Path(folder) / "log", "--data-dir", f"{folder}/data", "--checkpoint-dir", str(kept)), forked=False
        )
        began = time.monotonic()
        try:
            done = live(server, rows, kills, seed, lambda kill: console.print(f"kill {kill + 1}"))
        finally:
            server.terminate()
        found = sorted(each for each in kept.iterdir() if each.is_dir() and not each.name.startswith("."))
        restored = [check_checkpoint(each, Path(folder)) for each in found]
    console.print(
        f"{kills} kills in {time.monotonic() - began:.0f} s: {done['_write']:,} rows written again, {done['_read']:,} "
        f"rows mapped, {done['_checkpoint']} checkpoints, {len(restored)} of them restored with {sum(restored):,} rows"
    )
    console.print("0 mixed, 0 lost")
    return 0


if __name__ == "__main__":
    sys.exit(run_app(new_app("tools.faults.updated_rows", __doc__, main)))
