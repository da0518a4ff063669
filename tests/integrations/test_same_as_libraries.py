"""Buffers of a service give back what the libraries' own buffers give, in random spaces.

The long form is `python -m tests.integrations.same_as_libraries 500`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from replay_client import ReplayClient

from tests.integrations.same_as_libraries import COMPARISONS, compare
from tests.support.examples import examples
from tests.support.server_process import ServerProcess


@pytest.fixture
def client(server: ServerProcess) -> Iterator[ReplayClient]:
    with ReplayClient(server.address) as made:
        yield made


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tianshou's numba functions as Python: each process would compile them, longer than the test takes."""
    for module, name in (
        ("tianshou.data.buffer.manager", "_prev_index"),
        ("tianshou.data.buffer.manager", "_next_index"),
        ("tianshou.algorithm.algorithm_base", "_nstep_return"),
    ):
        function = getattr(pytest.importorskip(module, exc_type=ImportError), name)
        monkeypatch.setattr(f"{module}.{name}", function.py_func)


@pytest.mark.parametrize("library", COMPARISONS)
def test_the_service_gives_back_what_the_library_itself_gives(
    client: ReplayClient, library: str, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed", exc_type=ImportError)
    if library == "tianshou":
        request.getfixturevalue("interpreted")
    compare(library, client, range(examples(8)))
