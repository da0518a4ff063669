"""Fixtures: a server that many tests share, servers of a test's own, and callers of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.caller import DATA_PATHS, WIRE, CalledTable, Caller
from tests.support.server_process import ServerProcess
from tests.support.warm_program import close_warm_programs

# The same examples every time: what fails here fails again.
settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=False)
settings.load_profile("repeatable")

# A shell starts what runs in its background with Ctrl-C ignored, and so would all programs that tests start here.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Files of tokens are refused where others can read them.
os.umask(0o077)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Load nothing of files without a test that limits a time, when only those are asked for."""
    if config.option.markexpr != "timed" or not collection_path.match("test_*.py"):
        return None
    return None if "pytest.mark.timed" in collection_path.read_text("utf-8") else True


def pytest_sessionfinish() -> None:
    """End what programs were forked from, before coverage is put together."""
    close_warm_programs()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that all tests share which neither stop it nor count all of its calls."""
    log = tmp_path_factory.mktemp("server") / "log"
    process = ServerProcess(log, "--max-request-mb", "64", "--max-reply-mb", "64", forked=True)
    yield process
    process.terminate()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of modules that say ``ALL_DATA_PATHS = True`` over each of the ways to a table.

    A test there that is about one of them, or about neither, is marked with `wire_only`.
    """
    given = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    wanted = getattr(metafunc.module, "ALL_DATA_PATHS", False) and "data_path" not in given
    if wanted and "data_path" in metafunc.fixturenames:
        metafunc.parametrize("data_path", DATA_PATHS, indirect=True, scope="session")


@pytest.fixture(scope="session")
def data_path(request: pytest.FixtureRequest) -> str:
    """How a learner's calls and rows travel: see `tests.support.caller`."""
    path: str = getattr(request, "param", WIRE)
    return path


@pytest.fixture(scope="session")
def caller(server: ServerProcess, data_path: str) -> Iterator[Caller]:
    """A caller of the shared server."""
    with Caller(server.address, data_path) as made:
        yield made


@pytest.fixture
def new_table(caller: Caller) -> Iterator[Callable[..., CalledTable]]:
    """Makes tables on the shared server, and drops at the end what is left of them."""
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
    """Starts servers of the test's own, see `ServerProcess`, and ends them.

    They are forked from one that is loaded, unless the module says ``STARTS_PROGRAMS = True``.
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
    """Connects to servers, with a connection of the test's own."""
    made: list[Caller] = []

    def connect(process: ServerProcess) -> Caller:
        made.append(Caller(process.address, data_path))
        return made[-1]

    yield connect
    for connected in made:
        connected.close()
