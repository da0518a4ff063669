"""Sends mutated and random messages to every RPC of a server, and damaged files to its loader.

    python -m tools.faults.fuzz --messages 1000000 --report docs/operations/reliability.md

Every message is answered or refused by a typed error within seconds; the server stays up, its tables stay usable, and
its memory and file handles do not grow.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import grpc
import numpy as np
import psutil
from cyclopts import Parameter
from cyclopts.types import PositiveInt
from google.protobuf.message import Message
from grpc_status import rpc_status
from replay_proto.command_line import new_app, run_app
from replay_server.checkpoint.manifest import DamagedCheckpointError
from replay_server.checkpoint.reading import RestoreError, restore
from replay_server.checkpoint.snapshot import take_snapshots
from replay_server.checkpoint.writing import write_checkpoint
from replay_server.storage.table_config import TableConfig
from replay_server.storage.table_directory import DamagedTableError, TableDirectory
from replay_server.table.draws import Draw
from replay_server.table.table import NewRows, Table, WriterStamp
from rich.progress import Progress, track

from tests.support.caller import CalledTable, Caller
from tests.support.drawing import draw_batch
from tests.support.invariants import check_table
from tests.support.refusals import code_of, refusal_in
from tests.support.rows import WHOLE, columns_of
from tests.support.server_process import ServerProcess
from tests.support.small_disk import with_small_disk
from tests.support.victim import WRITER, good_request, make_victim
from tests.support.wire import METHODS, SERVICE, STREAMS
from tools.faults.mutations import flipped, made_odd, mutated
from tools.faults.report import document_with, write_section
from tools.faults.workers import first_priority

DISK_MB = 48
"""A small limit, so that no message can use much memory."""
_AT_ONCE = 64
_ROUND = 1000
"""Messages between two checks of the server, after which the table is recreated."""
_PER_STREAM = 4
_DAMAGED = 0.4
"""Fraction of messages with corrupted bytes; the others are well-formed, with up to two unusual values."""
_HANG_S = 20.0
_WEIGHTS = [0.01 if method == "DropTable" else 1.0 for method in METHODS]
"""Relative frequency of each RPC. After a drop, most messages of the round find no table."""
_MAY_WAIT = ("Sample", "Learn")
"""Methods whose draws may wait for rows without limit, so the client cancels them."""
_WAIT_S = 0.1
_WARM = 10_000
"""Memory must not grow after this many messages."""
_MAY_GROW_BYTES = 64 << 20
_MAY_GROW_FILES = 20


@dataclass
class Figures:
    """Result of a fuzzing run."""

    answered: Counter[str] = field(default_factory=Counter)
    """Messages answered, by method."""
    refused: Counter[str] = field(default_factory=Counter)
    """Messages refused, by reason."""
    cut_short: int = 0
    """Draws that waited for rows until the client canceled them."""
    files: int = 0
    """Damaged directories that were loaded."""
    files_refused: int = 0
    """Of these, how many were refused by a typed error."""
    grown_bytes: int = 0
    """Growth of the server's own memory after the first rounds."""

    @property
    def messages(self) -> int:
        """Total number of messages."""
        return self.answered.total() + self.refused.total() + self.cut_short

    def lines(self) -> Iterator[tuple[str, str]]:
        """A description and the figure."""
        yield f"mutated and random messages to {len(METHODS)} RPCs", f"{self.messages:,}"
        yield "answered", f"{self.answered.total():,}"
        yield "refused by a typed error", f"{self.refused.total():,}"
        yield "draws that waited until they were cut short", f"{self.cut_short:,}"
        yield "growth of the server's memory", f"{self.grown_bytes / 1e6:.1f} MB"
        yield "damaged table directories and checkpoints loaded", f"{self.files:,}"
        yield "of these refused, the file named", f"{self.files_refused:,}"
        # Any violation would have ended the run.
        yield "crashes, hangs, internal errors, tables that broke", "0"


class MessageFuzzer:
    """Sends messages to a separate server."""

    def __init__(self, folder: Path, seed: int) -> None:
        """Start the server; it stores everything on a disk of `DISK_MB`."""
        disk = folder / "disk"
        self.figures = Figures()
        self.server = ServerProcess(
            folder / "log",
            *("--max-request-mb", "2", "--max-reply-mb", "2", "--memory-dir", str(disk)),
            *("--checkpoint-dir", str(disk / "checkpoints"), "--keep-checkpoints", "2"),
            within=with_small_disk(disk, DISK_MB),
        )
        self._rng = random.Random(seed)
        self._process = psutil.Process(self.server.pid)

    def run(self, messages: int) -> None:
        """Send messages until this many were answered or refused.

        Raises:
            AssertionError: the server broke a guarantee.
        """
        before = self._size()
        with Progress() as progress:
            shown = progress.add_task("fuzzing messages", total=messages)
            while (done := self.figures.messages) < messages:
                try:
                    with Caller(self.server.address) as caller:
                        self._round(make_victim(caller))
                        self._check_usable(caller)
                except AssertionError as error:
                    error.add_note(self.server.log()[-5000:])
                    raise
                if done < min(_WARM, messages // 2):
                    before = self._size()
                progress.update(shown, completed=self.figures.messages)
        after = self._size()
        self.figures.grown_bytes = after[0] - before[0]
        assert self.figures.grown_bytes < _MAY_GROW_BYTES, f"memory grew from {before[0]} to {after[0]} bytes"
        assert after[1] - before[1] < _MAY_GROW_FILES, f"file handles grew from {before[1]} to {after[1]}"
        assert "Traceback" not in self.server.log(), self.server.log()[-5000:]

    def _size(self) -> tuple[int, int]:
        return self.server.resident_bytes, self._process.num_fds()

    def _round(self, table: CalledTable) -> None:
        templates = {method: good_request(method, table) for method in METHODS}
        under_way: deque[tuple[str, Any]] = deque()
        sent = 0
        while sent < _ROUND:
            (method,) = self._rng.choices(METHODS, _WEIGHTS)
            batch = [self._hostile(templates[method]) for _ in range(_PER_STREAM if method in STREAMS else 1)]
            sent += len(batch)
            under_way.append((method, self._start(table.caller.channel, method, batch)))
            if len(under_way) >= _AT_ONCE:
                self._finish(*under_way.popleft())
        while under_way:
            self._finish(*under_way.popleft())

    def _hostile(self, template: Message) -> bytes:
        """A corrupted message, or a valid but unusual one."""
        if self._rng.random() < _DAMAGED:
            return mutated(template.SerializeToString(), self._rng)
        message = type(template)()
        message.CopyFrom(template)
        for _ in range(self._rng.randint(0, 2)):
            made_odd(message, self._rng)
        return message.SerializeToString()

    def _start(self, channel: grpc.Channel, method: str, batch: list[bytes]) -> Any:
        timeout_s = _WAIT_S if method in _MAY_WAIT else _HANG_S
        path = f"/{SERVICE.full_name}/{method}"
        if method in STREAMS:
            stream: Callable[..., Any] = channel.stream_stream(path)
            return stream(iter(batch), timeout=timeout_s)
        unary: Any = channel.unary_unary(path)
        return unary.future(batch[0], timeout=timeout_s)

    def _finish(self, method: str, call: Any) -> None:
        try:
            for _ in call if method in STREAMS else [call.result()]:
                self.figures.answered[method] += 1
        except grpc.RpcError as error:
            if method in _MAY_WAIT and _was_cut_short(error):
                self.figures.cut_short += 1
            else:
                self.figures.refused[refusal_in(error).reason] += 1

    def _check_usable(self, caller: Caller) -> None:
        """Check that existing tables are consistent, and that a new one stores and returns rows."""
        for name in caller.table_names():
            described = caller.table(name).describe()
            assert 0 <= described.size <= described.config.capacity
        table = make_victim(caller)
        assert set(table.sample(20).values) <= {*range(9, 20), 77}


def _was_cut_short(error: grpc.RpcError) -> bool:
    """Whether the call's time limit ended it."""
    if code_of(error) is not grpc.StatusCode.DEADLINE_EXCEEDED:
        return False
    try:
        return rpc_status.from_call(error) is None
    except ValueError:
        return True  # a refusal arrived just as the time limit passed


class FileFuzzer:
    """Damages directories of tables and checkpoints, and loads them."""

    def __init__(self, folder: Path, figures: Figures, seed: int) -> None:
        """Create a table and a checkpoint to damage."""
        self._folder = folder
        self._figures = figures
        self._rng = random.Random(seed)
        (folder / "good").mkdir()
        table = Table(TableDirectory.create(folder / "good", TableConfig("table", WHOLE, capacity=50)))
        for sequence in range(1, 20):
            values = np.arange(table.inserted, table.inserted + 7)
            table.insert(NewRows(columns_of(values), 7, first_priority(values)), WriterStamp(WRITER, sequence))
        (folder / "checkpoint").mkdir()
        snapshots = asyncio.run(take_snapshots([table]))
        write_checkpoint(folder / "checkpoint", snapshots, 0.0, threading.Event())
        table.close()

    def run(self, times: int) -> None:
        """Damage and load them this many times.

        Raises:
            AssertionError: a loaded table is inconsistent.
        """
        for _ in track(range(times), description="fuzzing files"):
            self._load(self._folder / "good", self._table_of)
            self._load(self._folder / "checkpoint", self._restored)

    def _load(self, good: Path, load: Callable[[Path, Path], Table]) -> None:
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            copy, made = Path(name) / "copy", Path(name) / "made"
            shutil.copytree(good, copy)
            made.mkdir()
            damaged = self._rng.choice(sorted(path for path in copy.rglob("*") if path.is_file()))
            self._damage(damaged)
            self._figures.files += 1
            refusal = ""
            try:
                _use(load(copy, made))
            except (DamagedTableError, DamagedCheckpointError, RestoreError) as error:
                refusal = str(error)
            assert not refusal or damaged.name in refusal, f"{damaged} was damaged, and the loader said: {refusal}"
            self._figures.files_refused += bool(refusal)

    def _damage(self, path: Path) -> None:
        content = path.read_bytes()
        match self._rng.randrange(6):
            case 0:
                content = content[: self._rng.randrange(len(content))]
            case 1:
                path.unlink()
                return
            case 2:
                content = mutated(content, self._rng)
            case _:
                for _ in range(self._rng.choice((1, 1, 3, 100))):
                    content = flipped(content, self._rng)
        path.write_bytes(content)

    @staticmethod
    def _table_of(copy: Path, _made: Path) -> Table:
        return Table(TableDirectory.open(copy / "table"))

    @staticmethod
    def _restored(copy: Path, made: Path) -> Table:
        restore(copy, made)
        return Table(TableDirectory.open(made / "table"))


def _use(table: Table) -> None:
    """Check that the loaded table works: draws, inserts and invariants."""
    check_table(table)
    table.insert(NewRows(columns_of(np.arange(5)), 5), None)
    drawn = draw_batch(table, Draw(20, beta=0.5))
    assert len(table.live_keys(drawn.keys)) == 20
    check_table(table)
    table.close()


def main(
    *,
    messages: PositiveInt = 1_000_000,
    files: int = 5_000,
    seed: int = 0,
    report: Annotated[Path | None, Parameter(validator=document_with("fuzz"))] = None,
) -> None:
    """Fuzz, and report.

    Args:
        messages: how many messages to send.
        files: how often to damage a table and a checkpoint.
        seed: chooses the damages.
        report: document whose section on fuzzing is replaced.
    """
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        fuzzer = MessageFuzzer(Path(name), seed)
        try:
            FileFuzzer(Path(name), fuzzer.figures, seed).run(files)
            fuzzer.run(messages)
        finally:
            fuzzer.server.kill()
    for what, figure in fuzzer.figures.lines():
        print(f"{figure:>12}  {what}")
    print(f"refused by {dict(fuzzer.figures.refused)}")
    if report is not None:
        write_section(report, "fuzz", ("", "figure"), fuzzer.figures.lines())


if __name__ == "__main__":
    run_app(new_app("python -m tools.faults.fuzz", __doc__, main))
