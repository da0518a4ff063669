"""The first start of a version on a machine, and later ones."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from replay_server.backends import BACKENDS
from replay_server.errors import StoppedError
from replay_server.kernels import kernel_cache
from replay_server.kernels.compile import KERNELS
from replay_server.process import warming
from replay_server.process.warming import warm_up
from replay_server.storage.table_config import QUEUE

from tests.support.caller import Caller
from tests.support.deadlines import PATIENCE_S
from tests.support.server_process import ServerProcess, run_to_its_end, server_command, server_environment

STARTS_PROGRAMS = True
StartServer = Callable[..., ServerProcess]
Call = Callable[[ServerProcess], Caller]


def compiled_in(folder: Path) -> set[str]:
    """The compiled kernels in a folder, with each of their signatures."""
    return {path.name for path in folder.rglob("*.nbc")}


def test_servers_that_start_first_together_say_how_far_they_are_and_compile_once(
    start_server: StartServer, call: Call, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    environment = {"NUMBA_CACHE_DIR": str(tmp_path / "kernels")}
    with ThreadPoolExecutor(2) as threads:  # each with a separate log
        names = ("one", "other")
        for name in names:
            (tmp_path / name).mkdir()
        started = list(
            threads.map(
                lambda name: ServerProcess(
                    tmp_path / f"{name}.log", "--memory-dir", str(tmp_path / name), environment=environment
                ),
                names,
            )
        )
    for server in started:
        request.addfinalizer(server.kill)
    logs = sorted((server.log() for server in started), key=lambda log: "by another server" in log)
    assert "(first start of this version; stored in" in logs[0]
    assert "compiling kernels: 0 of" in logs[0]
    assert "kernels compiled in" in logs[0]
    assert "continuing without it" not in logs[0], "both processes that compile beside the server succeed"
    assert "by another server" not in logs[0]
    waited = [line for line in logs[1].splitlines() if "compiling kernels: " in line]
    assert waited
    assert all(line.endswith("by another server") for line in waited), "the second server compiles nothing"
    (folder,) = (tmp_path / "kernels").iterdir()
    assert kernel_cache.is_complete(folder)
    compiled = compiled_in(folder)
    assert len(list(folder.rglob("*.nbi"))) == len(KERNELS), "the start calls every kernel there is"
    again_and_again = {name.split("-")[0] for name in compiled if not name.endswith(".1.nbc")}
    assert again_and_again == {"checksum_kernels.take_in", "times_sampled._bar"}, "others have one signature each"
    for backend in (*BACKENDS, QUEUE):
        tables = [call(server).create(f"table-{backend}", capacity=1_000, backend=backend) for server in started]
        for table in tables:
            table.insert(range(1_500) if backend != QUEUE else range(500))
            drawn = table.sample(300)
            table.update(drawn.keys, [2.0] * 300)
            table.reset()
    again = start_server(environment=environment)
    assert "compil" not in again.log()
    assert compiled_in(folder) == compiled, "no call, and no later start, compiles anything"
    leave_to_other_tests(folder)


def test_a_long_wait_for_another_server_says_what_would_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kernel_cache, "folder", lambda: tmp_path)
    monkeypatch.setattr(warming, "_PATIENCE_S", 0.0)
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    with kernel_cache.lock(tmp_path) as is_ours:
        assert is_ours
        with pytest.raises(StoppedError):
            warm_up(stop)
    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert f"waits for another server, which compiles the kernels in {tmp_path}; if it makes no progress, stop" in told


def leave_to_other_tests(compiled: Path) -> None:
    """Copy the kernels to where all other servers look for them, because compiling them takes half a minute."""
    if not kernel_cache.is_complete(kernel_cache.folder()):
        shutil.copytree(compiled, kernel_cache.folder(), dirs_exist_ok=True)


def test_a_server_that_starts_makes_nothing_but_tables_in_its_data_directory(tmp_path: Path) -> None:
    """If it created other files, a killed server would leave them behind."""
    data, seen = tmp_path / "data", set()
    command = server_command("--port", "0", "--data-dir", str(data))
    with subprocess.Popen(command, env=server_environment({}), stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        ready = threading.Thread(target=server.stdout.readline)
        ready.start()
        while ready.is_alive():
            seen |= {path.name.split("-")[0] for path in data.glob("*")}
            ready.join(0.005)
        server.kill()
    assert seen >= {"lock", "tables"}
    assert seen <= {"lock", "tables", "owner.json", ".new"}


@pytest.mark.parametrize(("flag", "answer"), [("--version", "replay-server 0."), ("--help", "--max-reply-mb")])
def test_what_needs_no_server_is_answered_without_loading_one(flag: str, answer: str) -> None:
    asked = (
        "import sys\n"
        "from replay_server.__main__ import main\n"
        f"sys.argv = ['replay-server', '{flag}']\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    assert not {'numba', 'uvloop', 'replay_server.table.table'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert answer in done.stdout


def test_a_setting_is_refused_without_loading_the_server() -> None:
    ended = run_to_its_end("--port", "70000", environment={"PYTHONPROFILEIMPORTTIME": "1"})
    assert ended.returncode == 2
    assert "numba" not in ended.stderr


def test_a_copy_of_the_kernels_serves_another_place(tmp_path: Path) -> None:
    """Container images are built in one place and run in another."""
    warm_up()
    shutil.copytree(kernel_cache.folder(), tmp_path / kernel_cache.folder().name)
    ended = run_to_its_end(
        *("--memory-dir", str(tmp_path), "--exit-with-parent"), environment={"NUMBA_CACHE_DIR": str(tmp_path)}
    )
    assert ended.returncode == 0
    assert "compil" not in ended.stderr
