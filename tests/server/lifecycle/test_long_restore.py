"""A restore that takes long: signals and probes are answered meanwhile, and its progress is logged."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from replay_server.files import long_work
from replay_server.files.long_work import LongWork

from tests.support.caller import Caller
from tests.support.deadlines import wait_until
from tests.support.http_port import opener
from tests.support.server_process import ServerProcess, server_environment
from tests.support.warm_program import SERVER, ForkedProcess, warm_program

PORT = re.compile(r"metrics at http://127.0.0.1:(\d+)/metrics")


def with_a_file_that_waits(checkpoint: Path, copy: Path, table: str) -> Path:
    """Copy a checkpoint. Whoever reads the first column of the table waits until somebody else writes it."""
    shutil.copytree(checkpoint, copy)
    column = copy / table / "column-000.bin"
    column.unlink()
    os.mkfifo(column)
    return column


@contextmanager
def restoring(folder: Path, checkpoint: Path) -> Iterator[tuple[ForkedProcess, Callable[[], str]]]:
    """A server that restores a checkpoint, and its log."""
    log = folder / "log"
    flags = ("--port", "0", "--http-port", "0", "--data-dir", str(folder / "data"), "--restore", str(checkpoint))
    with log.open("a") as stderr:
        server = warm_program(SERVER).start(flags, server_environment({}), subprocess.DEVNULL, stderr.fileno())
    try:
        yield server, log.read_text
    finally:
        server.kill()
        server.wait()


def probe(port: str, path: str) -> tuple[int, str]:
    try:
        with opener().open(f"http://127.0.0.1:{port}{path}", timeout=20) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def test_probes_and_signals_are_answered_meanwhile_and_the_same_command_works_again(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    server = start_server("--checkpoint-dir", str(tmp_path / "checkpoints"))
    with Caller(server.address) as caller:
        table = caller.create()
        table.insert(range(50))
        checkpoint = Path(caller.checkpoint().directory)
    column = with_a_file_that_waits(checkpoint, tmp_path / "waiting", table.name)
    with restoring(tmp_path, tmp_path / "waiting") as (process, log):
        with column.open("wb", buffering=0) as feeding:  # opens once the server reads the file
            wait_until(lambda: PORT.search(log()) is not None, "it has logged its port")
            port = PORT.search(log())
            assert port is not None
            assert probe(port[1], "/healthz") == (200, "alive\n")
            assert probe(port[1], "/readyz") == (503, "starting\n")
            process.send_signal(signal.SIGTERM)
            fed_mb = 0
            with suppress(BrokenPipeError):  # It stops reading.
                while fed_mb < 1000:
                    feeding.write(bytes(1 << 20))
                    fed_mb += 1
            assert fed_mb < 1000
        assert process.wait(20) == 0
        assert f"stopped while restoring {tmp_path / 'waiting'}" in log()
    again = start_server("--data-dir", str(tmp_path / "data"), "--restore", str(checkpoint))
    with Caller(again.address) as caller:
        assert caller.table(table.name).describe().size == 50


def test_progress_is_logged_every_few_seconds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(long_work, "_SAY_S", 0.0)
    work = LongWork("restoring backups/nightly-000001")
    work.total_bytes = 6_000_000_000
    with caplog.at_level("INFO"):
        work.advance(1_500_000_000)
    assert caplog.messages == ["restoring backups/nightly-000001: 1.5 of 6.0 GB after 0 s; SIGTERM ends it"]
