"""The training loop in the documentation uses only what the package exports."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import replay_agent
import torch

from tests.support.server_process import ServerProcess

PAGE = Path(__file__).parents[3] / "docs" / "trainer.md"


def test_every_exported_name_is_there() -> None:
    assert [name for name in replay_agent.__all__ if not getattr(replay_agent, name).__doc__] == []


@pytest.fixture
def torch_as_before() -> Iterator[None]:
    """Restore the thread count, which the program changes, and make its network reproducible."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("torch_as_before")
def test_the_loop_of_the_documentation_learns(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    assert "localhost:50051" in program
    program = program.replace("localhost:50051", server.address)
    exec(compile(program, str(PAGE), "exec"), {"__name__": "__main__"})  # torch is already loaded here
    mean = int(capsys.readouterr().out.removeprefix("mean return of 10 greedy episodes: "))
    # A random policy reaches about 22.
    assert mean > 60
