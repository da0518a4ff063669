"""Kills a server under load again and again, and audits the restarted server after every kill.

    python -m tools.faults.torture --kills 500 --report docs/operations/reliability.md

The ring is small, so that rows are overwritten all the time. Workers speak the contract directly: the audit knows of
every insert and every priority whether it was acknowledged or only sent.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
from cyclopts import Parameter
from cyclopts.types import PositiveInt
from replay_proto.command_line import new_app, run_app
from replay_proto.steps import Item, Transitions
from replay_server.checkpoint.reading import restore
from replay_server.storage.table_directory import TableDirectory
from replay_server.table.table import Table
from rich.progress import track

from tests.support.caller import CalledTable, Caller, window_shape
from tests.support.invariants import check_table
from tests.support.rows import columns_of, values_in
from tests.support.server_process import ServerProcess
from tests.support.step_audit import drawable_keys
from tools.faults.report import document_with, write_section
from tools.faults.workers import (
    VALUES_PER_WRITER,
    CallWriter,
    Checkpointer,
    Learner,
    StreamWriter,
    Worker,
    Writer,
    first_priority,
)

CAPACITY = 1000
LEARNERS = 2
ITEM = Transitions(n_step=3)
"""What the table of steps draws."""
_SHORTEST_LOAD_S, _LONGEST_LOAD_S = 0.02, 0.4
_KILLED_WHILE_STARTING = 0.2
"""Fraction of kills that are followed by another kill during startup."""
_START_S = 0.7
"""Maximum delay of that kill, similar to the duration of a startup."""


@dataclass
class Figures:
    """Result of a torture run."""

    kills: int = 0
    """Servers that were killed under load."""
    kills_while_starting: int = 0
    """Servers that were killed while they recovered."""
    rows: int = 0
    """Rows acknowledged."""
    inserts: int = 0
    """Inserts acknowledged."""
    in_flight_applied: int = 0
    """Inserts applied but unanswered at a kill: their retry returned the original keys."""
    in_flight_not_applied: int = 0
    """Inserts neither applied nor answered at a kill: their retry inserted them."""
    priorities: int = 0
    """Priorities acknowledged."""
    rows_audited: int = 0
    """Rows read and compared after kills."""
    checkpoints: int = 0
    """Checkpoints acknowledged."""
    checkpoints_audited: int = 0
    """Checkpoints restored and compared after kills."""
    restarts_s: list[float] = field(default_factory=list)
    """Duration of each startup."""
    broken_by: Counter[str] = field(default_factory=Counter)
    """Status codes that workers received at a kill."""

    def lines(self) -> Iterator[tuple[str, str]]:
        """A description and the figure."""
        yield "servers killed under load", f"{self.kills:,}"
        yield "and killed again while they started", f"{self.kills_while_starting:,}"
        yield "inserts acknowledged", f"{self.inserts:,}"
        yield "rows acknowledged", f"{self.rows:,}"
        yield "priorities acknowledged", f"{self.priorities:,}"
        yield "inserts without an answer that had been applied", f"{self.in_flight_applied:,}"
        yield "inserts without an answer that had not been", f"{self.in_flight_not_applied:,}"
        yield "rows compared after kills", f"{self.rows_audited:,}"
        yield "checkpoints written under load", f"{self.checkpoints:,}"
        yield "checkpoints restored and compared after kills", f"{self.checkpoints_audited:,}"
        yield "median of a restart", f"{statistics.median(self.restarts_s):.2f} s"
        # Any violation would have ended the run.
        yield "acknowledged rows lost, rows doubled, torn rows, priorities lost, checkpoints damaged", "0"


class Torture:
    """A server, its load, and the load's records."""

    def __init__(self, server: ServerProcess, checkpoints: Path, seed: int, item: Item | None = None) -> None:
        """Create the table on a durable server with checkpoints in that directory; ``item``: a table of steps."""
        self.figures = Figures()
        self._server = server
        self._random = random.Random(seed)
        with Caller(server.address) as caller:
            table = caller.create(capacity=CAPACITY, item=item)
            self._name, self._shape = table.name, window_shape(table)
        self._writers: list[Writer] = [
            (StreamWriter if number % 2 else CallWriter)(number, seed + number, self._shape) for number in range(4)
        ]
        self._checkpointer = Checkpointer()
        self._checkpoints = checkpoints
        self._learners = [Learner(number, LEARNERS, seed + number) for number in range(LEARNERS)]

    def round(self) -> None:
        """Load, kill, restart, audit.

        Raises:
            AssertionError: acknowledged data is missing, or unexpected data is present.
        """
        self._load_until_killed()
        self._restart()
        with self._quiet_table() as table:
            found = self._audit_what_came_back(table)
            self._settle(table, found)
            self._audit_that_all_is_there_once(table)
            self._audit_checkpoints(table.caller)
        self._note_figures()

    @property
    def _workers(self) -> Sequence[Worker]:
        return [*self._writers, *self._learners, self._checkpointer]

    def _load_until_killed(self) -> None:
        workers = self._workers
        with ExitStack() as stack:
            callers = [stack.enter_context(Caller(self._server.address)) for _ in workers]
            threads = stack.enter_context(ThreadPoolExecutor(len(workers)))
            running = [
                threads.submit(worker.run, caller.table(self._name))
                for worker, caller in zip(workers, callers, strict=True)
            ]
            time.sleep(self._random.uniform(_SHORTEST_LOAD_S, _LONGEST_LOAD_S))
            self._server.kill()
            for each in running:
                each.result()
        self.figures.kills += 1

    def _restart(self) -> None:
        if self._random.random() < _KILLED_WHILE_STARTING:
            self._server.kill_while_starting(self._random.uniform(0.0, _START_S))
            self.figures.kills_while_starting += 1
        began = time.monotonic()
        self._server.restart()
        self.figures.restarts_s.append(time.monotonic() - began)

    @contextmanager
    def _quiet_table(self) -> Iterator[CalledTable]:
        """The table, for exclusive use."""
        with Caller(self._server.address) as caller:
            yield caller.table(self._name)

    def _audit_what_came_back(self, table: CalledTable) -> dict[int, float]:
        """Check that acknowledged rows and priorities exist, rows are intact, and all of them were sent.

        Returns:
            The priority of every row that can be drawn, by key.
        """
        rows = table.read(table.live_keys())
        keys, values = rows.keys.tolist(), rows.values.tolist()
        assert len(set(values)) == len(values), "a row is there twice"
        by_key = dict(zip(keys, values, strict=True))
        for writer in self._writers:
            writer.forget_before(min(keys, default=0))
            lost = {key: value for key, value in writer.acknowledged.items() if by_key.get(key) != value}
            assert not lost, f"acknowledged rows are not there: {lost}"
        strange = [value for value in values if not any(writer.was_sent(value) for writer in self._writers)]
        assert not strange, f"rows that nobody sent: {strange}"
        drawable = drawable_keys(table, rows, self._shape)
        found = {key: priority for key, priority in zip(keys, rows.priorities.tolist(), strict=True) if key in drawable}
        for key in found:
            first = float(first_priority(np.array(by_key[key])))
            allowed = set(self._learners[key % LEARNERS].may_be(key)) or {first}
            if key not in self._learners[key % LEARNERS].acknowledged:
                allowed.add(first)
            assert found[key] in allowed, f"row {key} has the priority {found[key]}, expected one of {allowed}"
        self.figures.rows_audited += len(keys)
        return found

    def _settle(self, table: CalledTable, found: dict[int, float]) -> None:
        """Resend unacknowledged requests."""
        for learner in self._learners:
            learner.settle(found)
        inserted, pending = table.describe().inserted, sum(len(writer.pending) for writer in self._writers)
        repeated = table.stats().repeated_inserts
        for writer in self._writers:
            writer.settle(table)
        applied = table.stats().repeated_inserts - repeated
        self.figures.in_flight_applied += applied
        self.figures.in_flight_not_applied += pending - applied
        assert table.describe().inserted >= inserted

    def _audit_that_all_is_there_once(self, table: CalledTable) -> None:
        """Check the table against all inserts, once every insert is acknowledged."""
        total = sum(writer.rows for writer in self._writers)
        assert table.describe().inserted == total, f"{table.describe().inserted} rows inserted, {total} acknowledged"
        rows = table.read(table.live_keys())
        expected = {key: value for writer in self._writers for key, value in writer.acknowledged.items()}
        oldest = max(0, total - CAPACITY)
        assert dict(zip(rows.keys.tolist(), rows.values.tolist(), strict=True)) == {
            key: value for key, value in expected.items() if key >= oldest
        }
        drawable = drawable_keys(table, rows, self._shape)
        if drawable:
            assert set(table.sample(200).keys.tolist()) <= drawable

    def _audit_checkpoints(self, caller: Caller) -> None:
        """Check that the last acknowledged checkpoint exists and that all can be restored."""
        names = caller.checkpoints()
        assert not self._checkpointer.last or self._checkpointer.last in names, "an acknowledged checkpoint is gone"
        for name in names:
            caller.verify(name)
            with tempfile.TemporaryDirectory() as folder:
                self._audit_restored(self._checkpoints / name, Path(folder))
        self.figures.checkpoints_audited += len(names)
        if names:
            # Treat unanswered checkpoints as acknowledged from now on, because two of them would replace all earlier
            # ones.
            self._checkpointer.last = names[-1]

    def _audit_restored(self, checkpoint: Path, folder: Path) -> None:
        """Check a checkpoint's table: each writer's rows are consecutive, intact and unique."""
        restore(checkpoint, folder)
        table = Table(TableDirectory.open(folder / self._name))
        check_table(table)
        keys = np.arange(table.oldest, table.inserted)
        out = columns_of(np.zeros(len(keys), np.int64))
        table.directory.rows.gather(keys, out)
        table.close()
        values = values_in(b"".join(column.tobytes() for column in out.values()))
        for number, writer in enumerate(self._writers):
            own = values[values // VALUES_PER_WRITER == number]
            assert (np.diff(own) == 1).all(), f"rows of writer {number} are missing or out of order"
            assert all(writer.was_sent(value) for value in own.tolist())

    def _note_figures(self) -> None:
        figures = self.figures
        figures.rows = sum(writer.rows for writer in self._writers)
        figures.inserts = sum(writer.inserts for writer in self._writers)
        figures.priorities = sum(learner.updates for learner in self._learners)
        figures.checkpoints = self._checkpointer.written
        figures.broken_by = sum((worker.broken_by for worker in self._workers), start=Counter[str]())


def tortured(kills: int, seed: int, item: Item | None) -> Figures:
    """Kill a server this often, with a table of rows, or of steps if there is an ``item``."""
    with tempfile.TemporaryDirectory(prefix="torture-") as name:
        folder = Path(name)
        checkpoints = folder / "checkpoints"
        server = ServerProcess(folder / "log", "--data-dir", str(folder / "data"), "--checkpoint-dir", str(checkpoints))
        torture = Torture(server, checkpoints, seed, item)
        try:
            for _ in track(range(kills), description="killing"):
                torture.round()
        finally:
            server.kill()
    return torture.figures


def main(
    *,
    kills: PositiveInt = 500,
    seed: int = 0,
    report: Annotated[Path | None, Parameter(validator=document_with("torture"))] = None,
) -> None:
    """Torture servers, and report: one with a table of rows, then one with a table of steps.

    Args:
        kills: how often to kill each server.
        seed: chooses moments and rows.
        report: document whose section on torture is written again.
    """
    rows, steps = (tortured(kills, seed, item) for item in (None, ITEM))
    lines = [
        (what, of_rows, of_steps) for (what, of_rows), (_, of_steps) in zip(rows.lines(), steps.lines(), strict=True)
    ]
    for what, *figures in lines:
        print(*(f"{figure:>12}" for figure in figures), f"  {what}")
    print(f"workers noticed by {dict(rows.broken_by)} and {dict(steps.broken_by)}")
    if report is not None:
        write_section(report, "torture", ("", "table of rows", "table of steps"), lines)


if __name__ == "__main__":
    run_app(new_app("python -m tools.faults.torture", __doc__, main))
