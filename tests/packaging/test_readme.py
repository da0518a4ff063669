"""The README's example runs as it stands, apart from the server's address."""

from __future__ import annotations

import re
import subprocess
import sys

from replay_client import ReplayClient

from tests.packaging.project import ROOT
from tests.support.server_process import ServerProcess

ADDRESS = "localhost:50051"
"""Where the README's server listens."""
TABLE = "quickstart"


def python_blocks() -> list[str]:
    """The Python programs in the README."""
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)


def test_the_example_inserts_samples_and_updates(server: ServerProcess) -> None:
    (example,) = python_blocks()
    assert ADDRESS in example
    ran = subprocess.run(
        [sys.executable, "-c", example.replace(ADDRESS, server.address)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    with ReplayClient(server.address) as client:
        stats = client.table(TABLE).stats()
        client.drop_table(TABLE)
    assert ran.stdout == f"1000 rows, {stats.updated} priorities updated\n"
    assert stats.table.inserted == 1_000
    assert stats.sampled >= 100 * 256
