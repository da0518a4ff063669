"""Lets every system call of a server's life fail in turn, and audits what is left.

    python -m tools.faults.syscalls

Three scripts are the life of a server: it serves (create, insert, update, checkpoint, reset, drop, shard map), it is
started again after it was killed, and it restores a checkpoint. For each call of each kind on the server's files, and
for each way in which it can fail, a script runs with that one failure. Then the files are opened without failures.

Each request must succeed or be refused by a typed error, and a server that ends must say why, without a traceback.
Every acknowledged row must be there with its priority, and nothing that was refused.
"""

from __future__ import annotations

import random
import select
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context, util
from pathlib import Path
from typing import Literal, NamedTuple

import grpc
import numpy as np
from grpc_status import rpc_status
from replay_proto.command_line import new_app, run_app
from replay_proto.owner import OWNER_FILE
from replay_proto.v1 import replay_pb2
from replay_server.catalog import Catalog
from replay_server.checkpoint.reading import resume, verify
from replay_server.errors import FatalError
from replay_server.rpc.local_socket.listener import SOCKET_NAME
from replay_server.storage.restored_tables import settle
from replay_server.storage.root import Root
from replay_server.table.table import Table
from rich.progress import track

from tests.support.caller import CalledTable, Caller, table_config
from tests.support.invariants import check_table
from tests.support.owner_records import change_record, make_original
from tests.support.power import pretend_another_boot
from tests.support.rows import WHOLE, values_in
from tests.support.warm_program import ForkedProcess
from tools.faults.failing_calls import KINDS, FailingCalls, Fault

Durability = Literal["process", "power"]
Rows = dict[int, tuple[int, float]]
"""Value and priority of each row, by key."""
CAPACITY = 100
WRITER = b"w" * 16
_PATIENCE_S = 20.0
_LISTENING = "replay-server listening on "


class WrongError(AssertionError):
    """A failed call had a consequence that it must not have."""


@dataclass
class Model:
    """What a server has acknowledged."""

    tables: dict[str, Rows] = field(default_factory=dict)
    inserted: dict[str, int] = field(default_factory=dict)
    checkpoints: set[str] = field(default_factory=set)
    shards_version: int = 0

    def copy(self) -> Model:
        """Return a copy that can be changed."""
        tables = {name: dict(rows) for name, rows in self.tables.items()}
        return Model(tables, dict(self.inserted), set(self.checkpoints), self.shards_version)

    def insert(self, name: str, values: Sequence[int], priority: float) -> None:
        """Note acknowledged rows."""
        first, rows = self.inserted[name], self.tables[name]
        rows.update({first + place: (value, priority) for place, value in enumerate(values)})
        self.inserted[name] = first + len(values)
        for key in [key for key in rows if key < self.inserted[name] - CAPACITY]:
            del rows[key]


class Server:
    """A server whose calls may fail, and the model of what it has acknowledged."""

    def __init__(self, calls: FailingCalls, folder: Path, model: Model, *flags: str) -> None:
        """Start it, and wait until it listens or has ended."""
        self.model = model
        self.refusals: list[str] = []
        """Reasons of the requests that were refused."""
        self._log = folder / "log"
        self.process: ForkedProcess = calls.start(folder, self._log, "--port", "0", *flags)
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], _PATIENCE_S)[0]:
            self.process.kill()
            raise WrongError(f"the server neither listens nor ends: {self.log}")
        line = self.process.stdout.readline()
        self.address = line.removeprefix(_LISTENING).strip() if line.startswith(_LISTENING) else ""

    @property
    def log(self) -> str:
        """Its log."""
        return self._log.read_text("utf-8", "replace")

    def request(self, send: Callable[[], object], acknowledged: Callable[[], None]) -> None:
        """Send a request, and note in the model what it has done if it is answered."""
        try:
            send()
        except grpc.RpcError as error:
            self.refusals.append(_reason(error))
            return
        acknowledged()

    def end(self) -> int:
        """Stop it, and return its exit status."""
        self.process.terminate()
        return self.wait()

    def kill(self) -> None:
        """Kill it."""
        self.process.kill()
        self.wait()

    def wait(self) -> int:
        """Wait for its end, and return its exit status."""
        try:
            status = self.process.wait(_PATIENCE_S)
        except Exception:
            self.process.kill()
            raise WrongError(f"the server does not end: {self.log}") from None
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status

    def check_end(self, status: int) -> None:
        """Check that it ended as it should."""
        if "Traceback" in self.log:
            raise WrongError(f"a traceback: {self.log}")
        if status not in (0, 1) or (status == 1 and "ERROR" not in self.log.upper()):
            raise WrongError(f"exit status {status}: {self.log}")


def _reason(error: grpc.RpcError) -> str:
    """The reason of a refusal; raises unless it is typed."""
    status = rpc_status.from_call(error)
    reasons = [] if status is None else [detail.value for detail in status.details]
    if error.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED):
        raise WrongError(f"{error.code()}: {error.details()}")
    if not reasons:
        raise WrongError(f"no reason: {error.code()}: {error.details()}")
    return str(error.code())


class Script(ABC):
    """A part of a server's life, with what it needs."""

    name: str

    def __init__(self, calls: FailingCalls, durability: Durability, folder: Path) -> None:
        """Prepare what the script begins with, in ``folder``."""
        self.calls = calls
        self.durability = durability
        self.begins = folder / f"{self.name}-{durability}"
        self.begins.mkdir()
        self.before = Model()
        self.counts = dict.fromkeys(KINDS, 0)
        """Calls of each kind in the last run."""
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Make the files that the script begins with."""

    def flags(self, folder: Path) -> tuple[str, ...]:
        """The server's command line."""
        checkpoints = ("--checkpoint-dir", str(folder / "checkpoints"), "--keep-checkpoints", "1")
        power = ("--durability", self.durability, "--sync-every", "0.05")
        return ("--data-dir", str(folder / "data"), *checkpoints, *power)

    @abstractmethod
    def requests(self, server: Server, caller: Caller) -> None:
        """Send the script's requests."""

    def points(self) -> list[Fault]:
        """Run the script once without a failure, and return all that can fail."""
        self.run(None)
        return [
            Fault(kind, nth, error)
            for kind, errors in KINDS.items()
            for nth in range(1, self.counts[kind] + 1)
            for error in errors
        ]

    def run(self, fault: Fault | None) -> str:
        """Run the script with a failure, audit what is left, and return the outcome."""
        with tempfile.TemporaryDirectory(prefix="syscalls-") as name:
            folder = Path(name) / "watched"
            shutil.copytree(self.begins, folder)
            for record in folder.glob(f"*/{OWNER_FILE}"):  # else the server would watch for a heartbeat
                make_original(record.parent)
            self.calls.arm(fault)
            server = Server(self.calls, folder, self.before.copy(), *self.flags(folder))
            try:
                if server.address:
                    with Caller(server.address) as caller:
                        self.requests(server, caller)
            except BaseException:
                server.kill()
                raise
            status = server.end() if server.address else server.wait()
            fired, self.counts = self.calls.fired, self.calls.counts
            self.calls.arm(None)
            server.check_end(status)
            if fault is None and (status or server.refusals):
                raise WrongError(f"exit status {status}, refused {server.refusals} without a failure: {server.log}")
            named = self.audit(folder, server)
            if not fired:
                return "not reached"
            if named:
                return "a damaged file is named"
            if not server.address:
                return "the start is refused"
            if server.refusals:
                return "a request is refused"
            return "the end is reported" if status else "no consequence"

    def audit(self, folder: Path, server: Server) -> bool:
        """Open what is left, and compare it with what was acknowledged; return whether a damaged file is named."""
        return audit(folder, server.model, checked=self.durability == "power")


class Serving(Script):
    """A new server and every request that changes something."""

    name = "serve"

    def prepare(self) -> None:
        """Begin without files."""

    def requests(self, server: Server, caller: Caller) -> None:
        model = server.model
        for name in ("kept", "gone"):
            self._create(server, caller, name)
        values = iter(range(1000))
        for sequence, count in enumerate((20, 60, 60), 1):
            self._insert(server, caller, "kept", [next(values) for _ in range(count)], 2.0, sequence)
        self._insert(server, caller, "gone", [next(values) for _ in range(10)], 1.0, 1)
        if keys := list(model.tables.get("kept", {}))[:5]:
            table = caller.table("kept")
            server.request(lambda: table.update(keys, [9.0] * len(keys)), lambda: _note_update(model, "kept", keys))
        self._checkpoint(server, caller)
        if "gone" in model.tables:
            gone = caller.table("gone")
            server.request(gone.drop, lambda: model.tables.__delitem__("gone"))
        self._checkpoint(server, caller)
        if "kept" in model.tables:
            server.request(caller.table("kept").reset, lambda: model.tables["kept"].clear())
            self._insert(server, caller, "kept", [next(values) for _ in range(30)], 3.0, 4)
        self._set_shards(server, caller)

    def _create(self, server: Server, caller: Caller, name: str) -> None:
        request = replay_pb2.CreateTableRequest(config=table_config(name, capacity=CAPACITY))

        def acknowledged() -> None:
            server.model.tables[name], server.model.inserted[name] = {}, 0

        server.request(lambda: caller.stub.CreateTable(request, timeout=_PATIENCE_S), acknowledged)

    def _insert(
        self, server: Server, caller: Caller, name: str, values: list[int], priority: float, sequence: int
    ) -> None:
        if name not in server.model.tables:
            return
        table = caller.table(name)
        given = [priority] * len(values)
        refused = len(server.refusals)

        def insert() -> None:
            table.insert(values, given, writer_id=name.ljust(16).encode(), sequence=sequence)

        server.request(insert, lambda: server.model.insert(name, values, priority))
        if len(server.refusals) > refused:  # the writer tries again
            server.request(insert, lambda: server.model.insert(name, values, priority))

    def _checkpoint(self, server: Server, caller: Caller) -> None:
        made: list[str] = []
        server.request(lambda: made.append(caller.checkpoint().name), lambda: server.model.checkpoints.add(made[0]))
        server.model.checkpoints = set(sorted(server.model.checkpoints)[-1:])

    def _set_shards(self, server: Server, caller: Caller) -> None:
        shard = replay_pb2.Shard(id=3, address="here:1", state=replay_pb2.SHARD_STATE_ACTIVE)
        shards = replay_pb2.ShardMap(uid=WRITER, version=1, shards=[shard])

        def acknowledged() -> None:
            server.model.shards_version = 1

        request = replay_pb2.SetShardsRequest(map=shards, expected_version=0)
        server.request(lambda: caller.stub.SetShards(request, timeout=_PATIENCE_S), acknowledged)


def _note_update(model: Model, name: str, keys: Sequence[int]) -> None:
    rows = model.tables[name]
    rows.update({key: (rows[key][0], 9.0) for key in keys})


class Restarting(Script):
    """A server on the tables of one that was killed; with durability power, the machine went down, too."""

    name = "restart"

    def prepare(self) -> None:
        self.calls.arm(None)
        server = Server(self.calls, self.begins, Model(), *self.flags(self.begins))
        with Caller(server.address) as caller:
            table = caller.create("kept", capacity=CAPACITY)
            server.model.tables["kept"], server.model.inserted["kept"] = {}, 0
            for values in (range(60), range(60, 120)):
                table.insert(list(values), [2.0] * 60)
                server.model.insert("kept", list(values), 2.0)
            while table.stats().unsynced:
                select.select([], [], [], 0.01)
        server.kill()
        (self.begins / "log").unlink()
        if self.durability == "power":
            pretend_another_boot(self.begins / "data")
        (self.begins / "data" / "tables" / SOCKET_NAME).unlink(missing_ok=True)
        self.before = server.model

    def requests(self, server: Server, caller: Caller) -> None:
        table = caller.table("kept")
        _check_rows(table, server.model.tables["kept"])
        server.request(
            lambda: table.insert(list(range(200, 240)), [4.0] * 40),
            lambda: server.model.insert("kept", list(range(200, 240)), 4.0),
        )


class Upgrading(Restarting):
    """A server that adds checksums to the tables of one without."""

    name = "upgrade"

    def flags(self, folder: Path) -> tuple[str, ...]:
        """Like those of the script, but the prepared server has no checksums."""
        given = super().flags(folder)
        return tuple("process" if flag == "power" and folder == self.begins else flag for flag in given)

    def prepare(self) -> None:
        super().prepare()
        change_record(self.begins / "data", tables="synced", is_running=False)


class Restoring(Restarting):
    """A server that restores a checkpoint of two tables."""

    name = "restore"

    def prepare(self) -> None:
        self.calls.arm(None)
        server = Server(self.calls, self.begins, Model(), *super().flags(self.begins))
        with Caller(server.address) as caller:
            for name in ("kept", "other"):
                server.model.tables[name], server.model.inserted[name] = {}, 0
                caller.create(name, capacity=CAPACITY).insert(list(range(60)), [2.0] * 60)
                server.model.insert(name, list(range(60)), 2.0)
            caller.checkpoint(series="to-restore")
        server.end()  # not killed: the next server would watch for its heartbeat
        shutil.rmtree(self.begins / "data")
        (self.begins / "log").unlink()
        self.before = server.model

    def flags(self, folder: Path) -> tuple[str, ...]:
        """The command line, which restores the checkpoint."""
        return (*super().flags(folder), "--restore", str(folder / "checkpoints" / "to-restore-000001"))

    def audit(self, folder: Path, server: Server) -> bool:
        """If the server did not serve, either no table is there or all are, and the same command works."""
        if not server.address:
            tables = folder / "data" / "tables"
            if tables.exists():
                resume(tables)
            there = {path.name for path in tables.iterdir() if path.name[0] != "."} if tables.exists() else set()
            if there not in (set(), {"kept", "other"}):
                raise WrongError(f"only {there} of the tables are restored")
            again = Server(self.calls, folder, server.model, *self.flags(folder))
            if not again.address:
                raise WrongError(f"the same command does not work again: {again.log}")
            again.end()
        return super().audit(folder, server)


def _check_rows(table: CalledTable, expected: Rows) -> None:
    rows = table.read(table.live_keys())
    found = dict(zip(rows.keys.tolist(), zip(rows.values.tolist(), rows.priorities.tolist(), strict=True), strict=True))
    if found != expected:
        raise WrongError(f"table {table.name}: served {found}, acknowledged {expected}")


def audit(folder: Path, model: Model, *, checked: bool) -> bool:
    """Open the tables and checkpoints that are left; raise unless they are what was acknowledged.

    Returns:
        Whether a damaged file is named instead.
    """
    for name in model.checkpoints:
        verify(folder / "checkpoints" / name)
    root = Root.durable(folder / "data")
    catalog = Catalog(root, checked=checked)
    try:
        resume(root.tables)
        settle(root.tables)
        catalog.open_tables()
        found = {table.name: _rows_of(table) for table in catalog}
        version = catalog.shards.version
    except FatalError as error:
        if str(folder) not in str(error):
            raise WrongError(f"no file is named: {error}") from error
        return True
    finally:
        with suppress(FatalError):
            catalog.close()
        root.close()
    if found != model.tables:
        raise WrongError(f"found {_brief(found)}, acknowledged {_brief(model.tables)}")
    if version != model.shards_version:
        raise WrongError(f"found shard map {version}, acknowledged {model.shards_version}")
    return False


def _rows_of(table: Table) -> Rows:
    check_table(table)
    keys = np.arange(table.oldest, table.inserted)
    out = {name: np.empty((len(keys), *column.shape), column.dtype) for name, column in WHOLE.items()}
    table.directory.rows.gather(keys, out)
    values = values_in(b"".join(column.tobytes() for column in out.values()))
    pairs = zip(values.tolist(), table.priorities(keys).tolist(), strict=True)
    return dict(zip(keys.tolist(), pairs, strict=True))


def _brief(tables: dict[str, Rows]) -> dict[str, object]:
    return {name: f"{len(rows)} rows, keys from {min(rows, default=None)}" for name, rows in tables.items()}


SCRIPTS: dict[Durability, tuple[type[Script], ...]] = {
    "process": (Serving, Restarting, Restoring),
    "power": (Serving, Restarting, Upgrading, Restoring),
}


class Trials:
    """Scripts, and servers whose calls fail. Each process of a run has its own."""

    def __init__(self, folder: Path) -> None:
        """Prepare all scripts, in an empty folder."""
        self.calls = FailingCalls(folder)
        self.scripts = [
            script(self.calls, durability, folder) for durability, scripts in SCRIPTS.items() for script in scripts
        ]

    def points(self) -> Iterator[Point]:
        """Every call that can fail, in every way."""
        for number, script in enumerate(self.scripts):
            yield from (Point(number, fault) for fault in script.points())

    def run(self, point: Point) -> tuple[str, str]:
        """Run one trial; return its outcome, and what was wrong."""
        script = self.scripts[point.script]
        try:
            return script.run(point.fault), ""
        except Exception as error:
            return "wrong", f"{script.name}, {script.durability}, {point.fault} ({self.calls.fired}): {error}"


class Point(NamedTuple):
    """A call that fails in a script."""

    script: int
    """Its place in `Trials.scripts`."""
    fault: Fault


_of_worker: Trials
"""The trials of a worker process."""


def _begin_worker(folder: Path) -> None:
    global _of_worker
    _of_worker = Trials(Path(tempfile.mkdtemp(dir=folder)))
    util.Finalize(None, _of_worker.calls.close, exitpriority=1)


def _run_in_worker(point: Point) -> tuple[str, str]:
    return _of_worker.run(point)


def main(
    *, sample: int = 0, seed: int = 0, kind: str = "", script: str = "", durability: str = "", jobs: int = 3
) -> None:
    """Let every system call fail in turn.

    Args:
        sample: try only this many points; 0: all.
        seed: of the sample.
        kind: try only calls of this kind.
        script: try only this script.
        durability: try only this durability.
        jobs: trials at the same time; they mostly wait.
    """
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="syscalls-") as name:
        (folder := Path(name) / "points").mkdir()
        trials = Trials(folder)
        chosen = {
            number
            for number, each in enumerate(trials.scripts)
            if script in ("", each.name) and durability in ("", each.durability)
        }
        points = [each for each in trials.points() if each.script in chosen and kind in ("", each.fault.kind)]
        trials.calls.close()
        # In random order, so that a few trials tell about all scripts.
        points = random.Random(seed).sample(points, min(sample or len(points), len(points)))
        with get_context("spawn").Pool(jobs, _begin_worker, (Path(name),)) as pool:
            for outcome, wrong in track(pool.imap_unordered(_run_in_worker, points), "system calls", len(points)):
                outcomes[outcome] += 1
                if wrong:
                    print(wrong, flush=True)
            pool.close()
            pool.join()
    print(f"{len(points)} points: " + ", ".join(f"{outcome}: {count}" for outcome, count in outcomes.items()))
    if outcomes["wrong"]:
        raise SystemExit(f"{outcomes['wrong']} points had wrong consequences")


if __name__ == "__main__":
    run_app(new_app("python -m tools.faults.syscalls", __doc__, main))
