"""Fixtures: a server shared by many tests, separate servers, and callers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.caller import DATA_PATHS, WIRE, CalledTable, Caller
from tests.support.order import in_shares
from tests.support.server_process import ServerProcess
from tests.support.warm_program import close_warm_programs, join_run

# The same examples every time, so failures are reproducible.
settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=False)
settings.load_profile("repeatable")

# Shells start background jobs with Ctrl-C ignored, and programs started by tests would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Several tests run at once, and torch's threads would spend most of their time waiting for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The server refuses token files that others can read.
os.umask(0o077)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip loading files without timed tests if only those are selected."""
    if config.option.markexpr != "timed" or not collection_path.match("test_*.py"):
        return None
    return None if "pytest.mark.timed" in collection_path.read_text("utf-8") else True


def pytest_configure() -> None:
    """Let all workers of pytest-xdist share the processes that fork programs."""
    join_run()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the tests into an order in which several workers are done soonest."""
    if worker := getattr(config, "workerinput", None):
        items[:] = in_shares(items, worker["workercount"])


def pytest_sessionfinish() -> None:
    """Stop the processes that fork programs, before coverage is combined."""
    close_warm_programs()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A shared server, for tests that neither stop it nor count all of its calls."""
    log = tmp_path_factory.mktemp("server") / "log"
    process = ServerProcess(log, "--max-request-mb", "64", "--max-reply-mb", "64", forked=True)
    yield process
    process.terminate()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of modules with ``ALL_DATA_PATHS = True`` over every data path.

    In these modules, tests that concern only one path, or none, are marked with `wire_only`.
    """
    given = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    wanted = getattr(metafunc.module, "ALL_DATA_PATHS", False) and "data_path" not in given
    if wanted and "data_path" in metafunc.fixturenames:
        metafunc.parametrize("data_path", DATA_PATHS, indirect=True, scope="session")


@pytest.fixture(scope="session")
def data_path(request: pytest.FixtureRequest) -> str:
    """The transport of a learner's calls and rows; see `tests.support.caller`."""
    path: str = getattr(request, "param", WIRE)
    return path


@pytest.fixture(scope="session")
def caller(server: ServerProcess, data_path: str) -> Iterator[Caller]:
    """A caller of the shared server."""
    with Caller(server.address, data_path) as made:
        yield made


@pytest.fixture
def new_table(caller: Caller) -> Iterator[Callable[..., CalledTable]]:
    """Creates tables on the shared server, and drops remaining ones at the end."""
    made = []

    def create(name: str | None = None, **config: object) -> CalledTable:
        made.append(caller.create(name, **config))
        return made[-1]

    yield create
    for name in {table.name for table in made} & set(caller.table_names()):
        caller.table(name).drop()


@pytest.fixture
def table(new_table: Callable[..., CalledTable]) -> CalledTable:
    """An empty table of capacity 100 on the shared server."""
    return new_table()


@pytest.fixture
def start_server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., ServerProcess]]:
    """Starts and ends separate servers; see `ServerProcess`.

    They are forked from a process that has loaded the server, unless the module has ``STARTS_PROGRAMS = True``.
    """
    started: list[ServerProcess] = []

    def start(*flags: str, **options: object) -> ServerProcess:
        log = tmp_path / f"server-{len(started)}.log"
        given = ("--memory-dir", str(tmp_path), *flags)
        forked = not getattr(request.module, "STARTS_PROGRAMS", False)
        started.append(ServerProcess(log, *given, **{"forked": forked, **options}))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.fixture
def call(data_path: str) -> Iterator[Callable[[ServerProcess], Caller]]:
    """Creates callers with separate connections."""
    made: list[Caller] = []

    def connect(process: ServerProcess) -> Caller:
        made.append(Caller(process.address, data_path))
        return made[-1]

    yield connect
    for connected in made:
        connected.close()
