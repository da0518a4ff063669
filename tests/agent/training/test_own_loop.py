"""The programs in the documentation of the trainer use only what the package exports."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import replay_agent
import torch

from tests.support.server_process import ServerProcess

PAGE = Path(__file__).parents[3] / "docs" / "trainer" / "trainer.md"
OWN_AGENT, OWN_LOOP = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)


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


@pytest.mark.deep
@pytest.mark.usefixtures("torch_as_before")
def test_the_loop_of_the_documentation_learns(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    assert "localhost:50051" in OWN_LOOP
    program = OWN_LOOP.replace("localhost:50051", server.address)
    exec(compile(program, str(PAGE), "exec"), {"__name__": "__main__"})  # torch is already loaded here
    mean = int(capsys.readouterr().out.removeprefix("mean return of 10 greedy episodes: "))
    # A random policy reaches about 22.
    assert mean > 60


@pytest.mark.deep
def test_the_agent_of_the_documentation_is_trained_and_evaluated(server: ServerProcess, tmp_path: Path) -> None:
    """As a program of its own, in which the trainer finds the parts by their names."""
    program = tmp_path / "program.py"
    program.write_text(OWN_AGENT.replace("localhost:50051", server.address), "utf-8")
    done = subprocess.run([sys.executable, program], cwd=tmp_path, check=True, capture_output=True, text=True)
    steps, _, run = done.stdout.strip().rpartition(" steps, ")
    assert steps == "4,000"
    assert (tmp_path / run / "agent.json").is_file()
