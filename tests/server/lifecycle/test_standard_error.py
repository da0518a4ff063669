"""Standard error never holds up the server: a reader that is slow or absent, a closed descriptor, an early signal."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from replay_server.files.standard_error import MOST_TEXTS, StandardError

from tests.support.caller import Caller
from tests.support.deadlines import wait_until
from tests.support.http_port import FLAGS, listening_ports, opener
from tests.support.server_process import ServerProcess, run_to_its_end, server_command, server_environment

StartServer = Callable[..., ServerProcess]
Call = Callable[[ServerProcess], Caller]
PAGE = 4096
SET_PIPE_SIZE = 1031
"""Linux's F_SETPIPE_SZ, which `fcntl` lacks."""


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe that holds a page: its ends for reading and for writing."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, SET_PIPE_SIZE, PAGE)
    yield reading, writing
    os.close(writing)
    os.close(reading)


@pytest.fixture
def unread(tmp_path: Path) -> Iterator[int]:
    """A pipe, in place of the first server's log, that nobody reads: its end for reading."""
    log = tmp_path / "server-0.log"
    os.mkfifo(log)
    reading = os.open(log, os.O_RDWR)
    fcntl.fcntl(reading, SET_PIPE_SIZE, PAGE)
    yield reading
    os.close(reading)


def test_a_log_that_nobody_reads_stops_neither_calls_nor_the_shutdown(
    start_server: StartServer, call: Call, unread: int
) -> None:
    server = start_server()
    table = call(server).create()
    for _ in range(PAGE // 64):  # each logs a longer line
        table.reset()
    assert len(table.insert(range(3))) == 3
    assert server.terminate() == 0


def test_lines_that_do_not_fit_are_counted_and_told_once_there_is_a_reader(
    pipe: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    reading, writing = pipe
    stream = StandardError(writing)
    stream._thread.start()
    line = "x" * 99 + "\n"
    for _ in range(MOST_TEXTS + PAGE // len(line) + 10):
        stream.write(line)
    assert not stream.drain(within_s=0.0)
    dropped = stream.lines_dropped
    assert dropped >= 9  # the thread holds one line in its hands
    stream.write(line)
    assert stream.lines_dropped == dropped + 1

    with caplog.at_level(logging.WARNING):
        while not stream.drain(within_s=0.001):
            os.read(reading, 1 << 20)
    assert f"{dropped + 1} lines of this log are missing here" in caplog.text
    stream.write("again\n")
    assert stream.drain()
    assert os.read(reading, 1 << 20).endswith(b"again\n")


def test_a_full_disk_holds_up_nothing_and_the_metrics_count_what_is_missing(
    start_server: StartServer, call: Call, tmp_path: Path
) -> None:
    (tmp_path / "server-0.log").symlink_to("/dev/full")
    server = start_server(*FLAGS)
    call(server).create("t").reset()
    (port,) = {port for _, port in listening_ports(server)} - {server.port}
    metrics = opener().open(f"http://127.0.0.1:{port}/metrics").read().decode()
    dropped = next(line for line in metrics.splitlines() if line.startswith("replay_log_lines_dropped_total "))
    assert float(dropped.split()[1]) >= 3
    assert server.terminate() == 0


def test_a_server_without_compiled_kernels_says_how_to_get_them() -> None:
    ended = run_to_its_end(environment={"NUMBA_DISABLE_JIT": "1"})
    assert ended.returncode == 1
    assert ended.stderr.startswith("replay-server: NUMBA_DISABLE_JIT: expected 0 or nothing")


def test_closed_standard_streams_do_no_harm(start_server: StartServer, call: Call, tmp_path: Path) -> None:
    closed = ("bash", "-c", 'exec "$@" 0<&- 2>&-', "bash")
    server = start_server("--data-dir", str(tmp_path / "data"), within=closed)
    call(server).create("t").insert(range(3))
    assert os.readlink(f"/proc/{server.pid}/fd/2") == os.devnull
    assert server.terminate() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_server_that_is_still_loading(number: signal.Signals) -> None:
    process = subprocess.Popen(
        server_command("--port", "0"), env=server_environment({}), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with process:
        wait_until(lambda: catches(process.pid, signal.SIGTERM), "it handles the signal")
        if number == signal.SIGINT:  # Python handles it from the beginning, and the program just after SIGTERM
            wait_until(lambda: "pydantic" in Path(f"/proc/{process.pid}/maps").read_text(), "it loads libraries")
        assert "llvmlite" not in Path(f"/proc/{process.pid}/maps").read_text()
        process.send_signal(number)
        assert process.communicate() == (b"", b"")
    assert process.returncode == 0


def test_the_command_handles_signals_before_it_imports_much() -> None:
    program = "import replay_server.__main__, sys; print(*sys.modules)"
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}  # because -S leaves out what is installed
    command = [sys.executable, "-S", "-c", program]
    loaded = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert not {"importlib.metadata", "numpy", "pydantic", "grpc"} & set(loaded.stdout.split())


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare")
def test_a_signal_ends_the_first_process_of_a_container_that_is_still_loading() -> None:
    process = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", *server_command("--port", "0")],
        env=server_environment({}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        try:
            wait_until(lambda: psutil.Process(process.pid).children() != [], "it is there")
            (first,) = psutil.Process(process.pid).children()
            wait_until(lambda: catches(first.pid, signal.SIGTERM), "it handles the signal")
            assert "llvmlite" not in Path(f"/proc/{first.pid}/maps").read_text()
            first.terminate()
            assert process.communicate() == (b"", b"")
        finally:
            process.kill()
    assert process.returncode == 0


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (number - 1) & 1)
