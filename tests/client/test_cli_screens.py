"""What `replay stats --watch` and `replay inspect --watch` show fits into a terminal of 80 x 24."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from replay_client import Column, ReplayClient, ReplayError, Table
from replay_client.cli.inspect_view import Inspected, inspect_screen
from replay_client.cli.lists import stats_line, stats_screen, table_list
from replay_client.results.stats import Stats
from rich.console import Console, RenderableType

from tests.client.numbered import rows
from tests.client.test_cli import COMMAND, environment, run
from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess

NewTable = Callable[..., Table]
WAITS = "1 learner waits for rows: 12 of 500"


def shown(view: RenderableType, console: Console) -> list[str]:
    with console.capture() as captured:
        console.print(view)
    return captured.get().splitlines()


def screen(height: int = 24, width: int = 80) -> Console:
    return Console(width=width, height=height, file=io.StringIO())


@pytest.fixture
def waited_for(new_table: NewTable) -> Table:
    """A table with a waiting learner, until it is dropped."""
    table = new_table(min_size=500)
    table.insert(rows(range(12)))

    def learn() -> None:
        with pytest.raises(ReplayError):
            table.sample(5, beta=0.4, timeout_s=60)

    threading.Thread(target=learn, daemon=True).start()
    wait_until(lambda: bool(table.stats().waits), "the learner waits")
    return table


def test_who_waits_is_on_every_screen(client: ReplayClient, waited_for: Table, server: ServerProcess) -> None:
    stats = client.stats()
    everything = shown(stats_screen(screen(), stats, server.address, None), screen())
    assert any(line.startswith(f"{waited_for.name}: {WAITS}") for line in everything)
    assert any(
        line.startswith(WAITS) for line in run("stats", waited_for.name, "-s", server.address).stdout.splitlines()
    )
    assert WAITS in stats_line(stats)
    found = json.loads(run("stats", waited_for.name, "--json", "-s", server.address).stdout)
    (wait,) = found["tables"][waited_for.name]["waits"]
    assert (wait["waited_for"], wait["calls"], wait["have"], wait["needed"]) == ("rows", 1, 12, 500)


def test_names_from_the_server_cannot_control_the_terminal(client: ReplayClient, waited_for: Table) -> None:
    hostile = "\x1b[31mred\x07 [bold]markup"
    stats = client.stats()
    one = stats.tables[waited_for.name]
    named = replace(one, table=replace(one.table, name=hostile, backend=hostile))
    crowd = Stats(replace(stats.server, version=hostile), {hostile: named})
    for view in (
        stats_screen(screen(), crowd, "here", None, problem=hostile),
        stats_screen(screen(), crowd, "here", hostile),
        table_list([named.table], "here"),
    ):
        text = "".join(shown(view, screen()))
        assert text.isprintable()
        assert "[bold]markup" in text


def test_many_waits_leave_room_for_tables_and_methods(client: ReplayClient, waited_for: Table) -> None:
    stats = client.stats()
    one = stats.tables[waited_for.name]
    crowd = {f"table-{number}": one for number in range(40)}
    lines = shown(stats_screen(screen(), Stats(stats.server, crowd), "here", None), screen())
    assert len(lines) <= 24
    text = "\n".join(lines)
    for part in (WAITS, "more waits do not fit", "more tables do not fit", "p99 ms"):
        assert part in text


def test_the_screen_of_a_table_fits_however_often_its_rows_were_drawn(
    new_table: NewTable, client: ReplayClient
) -> None:
    table = new_table(alpha=1.0, min_size=3)
    table.insert(rows(range(14)), priorities=0.5 ** np.arange(14))
    for _ in range(5):
        table.sample(4096, beta=0.4)
    stats = client.stats()
    drawn = [bar for bar in stats.tables[table.name].times_sampled if bar.rows]
    assert len(drawn) > 8
    lines = shown(stats_screen(screen(), stats, "here", table.name), screen())
    assert len(lines) <= 24
    assert "median" in "\n".join(lines)
    whole = shown(stats_screen(screen(50), stats, "here", table.name), screen(50))
    assert f"{drawn[-1].at_least}-{drawn[-1].at_most}" in "\n".join(whole)
    assert sum(bar.rows for bar in drawn) == 14


@pytest.mark.parametrize("height", [12, 24, 50])
@pytest.mark.parametrize("backend", ["sum_tree", "rank", "uniform", "fifo"])
def test_an_inspection_fits_into_the_screen(new_table: NewTable, backend: str, height: int) -> None:
    table = new_table(backend=backend, name="inspected-with-a-name-that-is-long")
    empty = Inspected(table.inspect(), table.read([]), 0.4)
    assert "no rows" in "\n".join(shown(inspect_screen(screen(height), empty, ""), screen(height)))
    table.insert(rows(range(900)), priorities=np.random.default_rng(0).exponential(size=900) ** 5)
    inspection = table.inspect()
    seen = Inspected(inspection, table.read(inspection.largest.row_keys), 0.4)
    for problem in ("", "server away for 3 s: nobody answers"):
        lines = shown(inspect_screen(screen(height), seen, problem), screen(height))
        text = "\n".join(lines)
        assert len(lines) <= height
        assert max(map(len, lines)) <= 80
        for part in (table.name, "900 of 1,000", "priority", str(inspection.largest.row_keys[2])):
            assert part in text
        assert problem in text
        assert ("rows by priority" in text) == ("rows by times drawn" in text) == (height >= 24)
        assert ("rows by weight" in text) == (height >= 50)


def test_an_inspection_that_is_printed_fits_into_the_terminal(server: ServerProcess, new_table: NewTable) -> None:
    table = new_table()
    table.insert(rows(range(900)), priorities=np.random.default_rng(0).exponential(size=900) ** 5)
    ours, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [COMMAND, "inspect", table.name, "-s", server.address]
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment())
    os.close(terminal)
    printed = bytearray()
    with suppress(OSError):  # the terminal is closed
        while part := os.read(ours, 65536):
            printed.extend(part)
    os.close(ours)
    assert process.wait(60) == 0
    assert "probability by rank" in printed.decode()
    assert printed.decode().count("\n") <= 23, "the next prompt fits, too"


def test_as_many_rows_are_listed_as_wanted(server: ServerProcess, new_table: NewTable) -> None:
    table = new_table()
    table.insert(rows(range(200)), priorities=np.arange(200))
    for count in (1, 3, 37):
        found = json.loads(run("inspect", table.name, "--rows", str(count), "--json", "-s", server.address).stdout)
        assert [row["key"] for row in found["largest"]] == list(range(199, 199 - count, -1))
    lines = run("inspect", table.name, "--rows", "37", "-s", server.address).stdout.splitlines()
    assert [line.split()[:2] for line in lines if " done false" in line or " number " in line][-1] == ["37", "163"]
    refused = run("inspect", table.name, "--rows", "101", "-s", server.address)
    assert refused.returncode == 2
    with pytest.raises(ReplayError, match="largest"):
        table.inspect(largest=101)
    with pytest.raises(ReplayError, match="largest"):
        table.inspect(largest=0)


def test_an_inspection_goes_on(server: ServerProcess, table: Table) -> None:
    table.insert(rows(range(20)))
    command = [COMMAND, "inspect", table.name, "--watch", "-n", "0.1", "-r", "2", "--json", "-s", server.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert [len(line["largest"]) for line in lines] == [2, 2, 2]
    inspection = table.inspect()
    seen = Inspected(inspection, table.read(inspection.largest.row_keys), 0.4)
    assert str(seen).startswith(f"{table.name} 20 of 1,000 rows, priorities 1 to 1, total mass 20")
    drawn = run("inspect", table.name, "--watch", "--png", "table.png", "-s", server.address)
    assert (drawn.returncode, drawn.stderr) == (2, "replay: --png draws one picture; leave out --watch\n")


def test_a_table_of_images_is_listed_in_lines(new_table: NewTable) -> None:
    table = new_table(columns={"obs/camera": Column("uint8", (84, 84)), "obs/pose": Column("float32", (4,))})
    table.insert({"obs": {"camera": np.zeros((30, 84, 84), np.uint8), "pose": np.ones((30, 4), np.float32)}})
    inspection = table.inspect()
    seen = Inspected(inspection, table.read(inspection.largest.row_keys), 0.4)
    lines = shown(inspect_screen(screen(), seen, ""), screen())
    listed = [line for line in lines if "obs/camera uint8[84,84] 0..0" in line]
    assert len(listed) >= 3
