"""The network between two namespaces is cut, delayed and reset; see `tools.faults.network_torture`."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.server_process import ServerProcess
from tools.faults.link import Link, obstacle
from tools.faults.network_load import LEAST
from tools.faults.network_torture import PROBLEMS, NetworkTorture, server_flags, torture

ROUNDS = 2 * len(PROBLEMS)
WAITING_CLIENT = textwrap.dedent("""
    # Writes and learns, and then waits for rows that nobody inserts.
    import sys, time
    from tests.support.caller import Caller, LearnStream, WriteStream, make_draw
    table = Caller(sys.argv[1]).create("t")
    writer, learner = WriteStream(table, b"0123456789abcdef"), LearnStream(table)
    writer.write([1], 1)
    learner.ask(draw=make_draw(1))
    table.reset()
    waiting = table.begin_sample(1, wait_s=3600)
    # What is on its way and not confirmed would be missed without anybody being asked.
    time.sleep(1.0)
    print("waits", flush=True)
    sys.stdin.read()
""")
UNTIL_ALONE = textwrap.dedent("""
    import sys
    from tests.support.caller import Caller
    from tests.support.deadlines import wait_until
    caller = Caller(sys.argv[1])
    def active():
        return [caller.method(name).active for name in ("Write", "Learn", "Sample")]
    assert active()[:2] == [1, 1], active()
    wait_until(lambda: active() == [0, 0, 0], "the server lets go of clients that vanished")
    assert caller.table("t").stats().waiting == 0
""")


@pytest.fixture
def link() -> Iterator[Link]:
    """Two simulated machines and a cable."""
    if reason := obstacle():
        pytest.skip(f"no network of two namespaces ({reason}): test_network breaks one by a proxy")
    with Link("test") as made:
        yield made


def at_clients(link: Link, server: ServerProcess, program: str) -> subprocess.Popen[str]:
    """Run a program at the clients' end."""
    return subprocess.Popen(
        [*link.at_clients, sys.executable, "-c", program, f"{link.server_host}:{server.port}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_whatever_the_network_does(
    link: Link, start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    server = start_server(*server_flags(link, tmp_path / "data"), within=link.at_server)
    problems = NetworkTorture(link, random.Random(3), 0.8, 2.0)
    figures = torture(link, server, problems, iter(range(ROUNDS)))
    assert problems.problems == dict.fromkeys(PROBLEMS, 2)
    assert min(figures.rows, figures.batches, figures.priorities_audited, figures.rows_audited) > LEAST
    assert figures.longest_pause_s > 0.5, "no problem was felt"
    assert "Traceback" not in server.log()


def test_clients_that_vanish_without_a_word_are_let_go_of(
    link: Link, start_server: Callable[..., ServerProcess]
) -> None:
    server = start_server(
        "--host", link.server_host, "--insecure", "--no-same-host", "--keepalive-s", "0.5", within=link.at_server
    )
    client = at_clients(link, server, WAITING_CLIENT)
    assert client.stdout is not None
    assert client.stdout.readline() == "waits\n"
    assert link.swallow_open(server.port) == 1
    client.kill()
    client.communicate()
    # A new connection works.
    other = at_clients(link, server, UNTIL_ALONE)
    try:
        other.communicate(timeout=60)
        assert other.returncode == 0, "the server still waits for them"
    finally:
        other.kill()
