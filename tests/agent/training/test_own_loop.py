"""The training loop in the documentation uses only what the package exports."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import replay_agent

from tests.support.server_process import ServerProcess

PAGE = Path(__file__).parents[3] / "docs" / "trainer.md"


def test_every_exported_name_is_there() -> None:
    assert [name for name in replay_agent.__all__ if not getattr(replay_agent, name).__doc__] == []


def test_the_loop_of_the_documentation_learns(server: ServerProcess) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    assert "localhost:50051" in program
    program = program.replace("localhost:50051", server.address)
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    mean = int(found.stdout.removeprefix("mean return of 10 greedy episodes: "))
    # A random policy reaches about 22.
    assert mean > 60
