"""Rate limiters and queues of tables defined in the TOML file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from replay_proto.v1 import replay_pb2

from tests.support.caller import Caller
from tests.support.server_process import ServerProcess, run_to_its_end

StartServer = Callable[..., ServerProcess]
Call = Callable[[ServerProcess], Caller]
TABLE = """
[[tables]]
name = "t"
capacity = 1000
columns = {{ x = {{ dtype = "int64" }} }}
{more}
"""


def write(path: Path, more: str) -> Path:
    """Write a config file with one table and these additional settings."""
    path.write_text(TABLE.format(more=more), "utf-8")
    return path


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("min_size = 5", replay_pb2.RateLimiter(min_size=5)),
        (
            "min_size = 100\nsamples_per_insert = 4\nerror_buffer = 50",
            replay_pb2.RateLimiter(min_size=100, samples_per_insert=4, min_diff=350, max_diff=450),
        ),
        (
            "samples_per_insert = 0.5\nerror_buffer = [-1, 7.5]",
            replay_pb2.RateLimiter(min_size=1, samples_per_insert=0.5, min_diff=-1, max_diff=7.5),
        ),
    ],
)
def test_a_rate_limiter_is_set(
    start_server: StartServer, call: Call, tmp_path: Path, more: str, expected: replay_pb2.RateLimiter
) -> None:
    server = start_server("--config", str(write(tmp_path / "config.toml", more)), "--data-dir", str(tmp_path / "data"))
    assert call(server).table("t").describe().config.rate_limiter == expected
    assert server.terminate() == 0
    server.restart()
    assert call(server).table("t").describe().config.rate_limiter == expected


def test_a_queue_is_set(start_server: StartServer, call: Call, tmp_path: Path) -> None:
    more = 'backend = "fifo"\nparameters = { max_times_sampled = 2 }'
    server = start_server("--config", str(write(tmp_path / "config.toml", more)))
    backend = call(server).table("t").describe().config.backend
    assert (backend.name, dict(backend.parameters)) == ("fifo", {"max_times_sampled": 2.0})


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ("min_size = 1001", "min_size"),
        ("samples_per_insert = 4", "error_buffer"),
        ('backend = "rank"\nparameters = { max_times_sampled = 0 }', "max_times_sampled"),
    ],
)
def test_what_cannot_be_keeps_the_server_from_starting(tmp_path: Path, more: str, named: str) -> None:
    done = run_to_its_end("--config", str(write(tmp_path / "config.toml", more)), "--memory-dir", str(tmp_path))
    assert done.returncode == 1
    assert named in done.stderr
    assert "Traceback" not in done.stderr


def test_a_table_beyond_a_bound_keeps_the_server_from_starting(tmp_path: Path) -> None:
    config = write(tmp_path / "config.toml", "")
    done = run_to_its_end("--config", str(config), "--memory-dir", str(tmp_path), "--max-bytes", "1MB")
    assert done.returncode == 1
    assert "max_bytes" in done.stderr
