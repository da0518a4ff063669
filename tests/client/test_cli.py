"""The command `replay`."""

from __future__ import annotations

import importlib.metadata
import io
import itertools
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from replay_client import Column, ReplayClient, Stack, Table, Transitions
from replay_client.cli.lists import stats_screen
from rich.console import Console

from tests.client.numbered import rows
from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess
from tests.support.warm_program import REPLAY, run_forked

NewTable = Callable[..., Table]
COMMAND = str(Path(sys.executable).with_name("replay"))
TIMEOUT_S = 60
LONG_NAME = "a-table-whose-name-is-longer-than-there-is-room-for-beside-its-figures"
SLOPES = {"sum_tree": "p^0.600, alpha 0.6", "rank": "rank^-0.600, alpha 0.6", "uniform": "all alike", "fifo": "A queue"}
"""The text about probabilities, by backend."""

PICTURES = """
import sys
from replay_client.cli import main

for size in sys.argv[1:]:
    sys.argv = ["replay", "inspect", f"cli-picture-{size}", "--png", f"{size}.png"]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
"""
"""Plots several tables in one process, because matplotlib takes a second to load."""


def environment(**variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REPLAY_")}
    return {**kept, "COLUMNS": "100", "TERM": "xterm", **variables}


def run(*arguments: str, text: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command to completion, forked from a process that has loaded it if that is equivalent."""
    variables_of_it = environment(**variables)
    done = run_forked(REPLAY, arguments, variables_of_it, text)
    return done or subprocess.run(
        [COMMAND, *arguments],
        input=text,
        capture_output=True,
        text=True,
        env=variables_of_it,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_tables_are_listed(server: ServerProcess, new_table: NewTable) -> None:
    new_table(name="cli-list", capacity=20_000, columns={"obs/camera": Column("uint8", (84, 84))}).insert(
        {"obs": {"camera": np.zeros((3, 84, 84), np.uint8)}}
    )
    done = run("tables", "--server", server.address)
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if "cli-list" in line)
    for part in ("sum_tree", " 3 ", "20.0k", "6.89 KiB", "obs/camera uint8[84,84]"):
        assert part in line
    listed = json.loads(run("tables", "--json", "--server", server.address).stdout)
    described = next(table for table in listed if table["name"] == "cli-list")
    assert described["columns"] == {"obs/camera": "uint8[84,84]"}
    assert (described["size"], described["capacity"]) == (3, 20_000)


def test_figures_of_all_tables(server: ServerProcess, new_table: NewTable) -> None:
    new_table(name="cli-stats").insert(rows(range(10)))
    done = run("stats", REPLAY_SERVER=server.address)
    assert done.returncode == 0, done.stderr
    for part in (server.address, "cli-stats", "inserted/s", "Insert", "p99 ms"):
        assert part in done.stdout
    figures = json.loads(run("stats", "--json", REPLAY_SERVER=server.address).stdout)
    assert figures["server"]["methods"]["Insert"]["calls"] >= 1
    assert figures["tables"]["cli-stats"]["size"] == 10


def test_figures_of_one_table(server: ServerProcess, new_table: NewTable) -> None:
    table = new_table(name="cli-one")
    table.insert(rows(range(10)), priorities=np.arange(10))
    table.sample(30, beta=0.4)
    done = run("stats", "cli-one", "--server", server.address)
    assert done.returncode == 0, done.stderr
    for part in ("10 of 1,000", "alpha 0.6", "0 to 9", "median", "times drawn"):
        assert part in done.stdout
    figures = json.loads(run("stats", "cli-one", "--json", "--server", server.address).stdout)
    assert list(figures["tables"]) == ["cli-one"]
    assert figures["tables"]["cli-one"]["sampled"] == 30


def test_figures_of_a_table_of_steps(server: ServerProcess, new_table: NewTable) -> None:
    columns = {"obs": Column("int64", sampled=False), "pair": Stack("obs", 2)}
    table = new_table(name="cli-steps", columns=columns, steps=Transitions(2))
    with table.writer(streams=2) as writer:
        for step in range(5):
            writer.append_all(obs=[step, step])
        writer[0].end_episode(obs=5)
    done = run("stats", "cli-steps", "--server", server.address, COLUMNS="160")
    assert done.returncode == 0, done.stderr
    assert "8 drawable, 2 pending, 0 broken, 1 closing" in done.stdout
    figures = json.loads(run("stats", "cli-steps", "--json", "--server", server.address).stdout)["tables"]["cli-steps"]
    assert figures["steps"] == {"drawable": 8, "pending": 2, "broken": 0, "closing": 1, "lost": 0}
    assert figures["item"] == {"kind": "Transitions", "n_step": 2, "gamma": 0.99}
    assert "Stack(of='obs', count=2" in run("tables", "--server", server.address, COLUMNS="160").stdout
    seen = run("inspect", "cli-steps", "--server", server.address, COLUMNS="160")
    assert seen.returncode == 0, seen.stderr
    assert "step" in seen.stdout


def test_figures_go_on_as_lines_of_json(server: ServerProcess, table: Table) -> None:
    command = [COMMAND, "stats", "--watch", "--json", "--interval", "0.1", "--server", server.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 0
    assert all(table.name in line["tables"] for line in lines)


def test_figures_go_on_in_the_terminal_while_the_server_restarts(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server()
    command = [COMMAND, "stats", "--watch", "--interval", "0.1", "--server", server.address]
    screen, terminal = pty.openpty()
    shown = bytearray()

    def shows(part: bytes) -> Callable[[], bool]:
        del shown[:]

        def poll() -> bool:
            shown.extend(os.read(screen, 65536))
            return part in shown

        return poll

    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment())
    wait_until(shows(b"no tables"), "there were figures")
    server.kill()
    wait_until(shows(b"no statistics"), "it said that there were none")
    server.restart()
    wait_until(shows(b"no tables"), "there were figures again")
    process.send_signal(signal.SIGINT)
    os.close(terminal)
    # Read all output, because a full terminal buffer would block the program.
    with suppress(OSError):
        while os.read(screen, 65536):
            pass
    assert process.wait(TIMEOUT_S) == 0
    os.close(screen)


@pytest.mark.parametrize("command", [["tables"], ["stats"], ["stats", LONG_NAME], ["checkpoint", "list"]])
def test_nothing_is_cut_off_in_80_characters(
    start_server: Callable[..., ServerProcess], tmp_path: Path, command: list[str]
) -> None:
    server = start_server("--checkpoint-dir", str(tmp_path / "checkpoints"))
    with ReplayClient(server.address) as client:
        client.create_table(LONG_NAME, columns={"x": Column("int64")}, capacity=1000).insert({"x": range(12)})
        client.checkpoint(series=LONG_NAME)
        taken = datetime.fromtimestamp(client.checkpoints()[0].taken_s)
    done = run(*command, "--server", server.address, COLUMNS="80")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in done.stdout
    begin, end = LONG_NAME[:20], LONG_NAME[-5:]
    assert begin in done.stdout
    assert end in done.stdout
    if command[0] == "checkpoint":
        assert f"{taken:%Y-%m-%d %H:%M:%S}" in done.stdout
        assert " MiB " in done.stdout
    if command[-1] == LONG_NAME:
        assert len(lines) <= 24


@pytest.mark.parametrize("width", [40, 50])
def test_figures_are_never_cut_without_a_mark(server: ServerProcess, new_table: NewTable, width: int) -> None:
    new_table(name="cli-narrow", capacity=400_000).insert(rows(range(200_000)))
    shown = run("stats", "cli-narrow", "--server", server.address, COLUMNS=str(width)).stdout
    assert "200k of 400k" in " ".join(shown.split())
    listed = run("stats", "--server", server.address, COLUMNS=str(width)).stdout
    assert "…" in listed


def test_what_a_screen_has_no_room_for_is_counted_on_it(server: ServerProcess, new_table: NewTable) -> None:
    names = [f"cli-many-{number}" for number in range(40)]
    for name in names:
        new_table(name=name)
    console = Console(width=80, height=24, file=io.StringIO())
    with ReplayClient(server.address) as client:
        found = client.stats()
    stats = replace(found, tables={name: found.tables[name] for name in names})  # other tests' names may be too long
    for problem in ("", "server away for 3 s: nobody answers"):
        with console.capture() as captured:
            console.print(stats_screen(console, stats, server.address, None, problem))
        shown = captured.get()
        assert len(shown.splitlines()) <= 24
        count = int(re.search(r"(\d+) more tables", shown)[1])  # type: ignore[index]
        assert count + sum(f"{name} " in shown for name in stats.tables) == len(stats.tables)
        assert "method" in shown
        assert problem in shown


@pytest.mark.parametrize(
    ("backend", "width"), [("sum_tree", 80), ("sum_tree", 160), ("rank", 80), ("uniform", 80), ("fifo", 80)]
)
def test_the_rows_of_a_table_are_seen(server: ServerProcess, new_table: NewTable, backend: str, width: int) -> None:
    columns = {"obs/camera": Column("uint8", (84, 84)), "obs/pose": Column("float32", (2,)), "done": Column("bool")}
    table = new_table(name=f"cli-inspect-{backend}-{width}", columns=columns, backend=backend)
    camera, pose = np.full((30, 84, 84), 7, np.uint8), np.full((30, 2), 0.5, np.float32)
    table.insert({"obs": {"camera": camera, "pose": pose}, "done": np.zeros(30, bool)}, priorities=np.arange(30))
    done = run("inspect", table.name, "--server", server.address, COLUMNS=str(width))
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= width
    for part in ("30 of 1,000", "all, exact", "rows by priority", "rows by age", "rows by times drawn", "uint8[84,84]"):
        assert part in done.stdout
    assert SLOPES[backend] in done.stdout
    assert "[0.5, 0.5]" in done.stdout
    assert "done false" in done.stdout


def test_a_picture_is_drawn_of_any_table(server: ServerProcess, new_table: NewTable, tmp_path: Path) -> None:
    sizes = (0, 1, 2000)
    for size in sizes:
        table = new_table(name=f"cli-picture-{size}", capacity=3000)
        if size:
            table.insert(rows(range(size)), priorities=np.arange(size))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PICTURES, *map(str, sizes)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment(REPLAY_SERVER=server.address),
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    for size in sizes:
        assert (tmp_path / f"{size}.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_cannot_be_written_is_one_line(server: ServerProcess, table: Table, tmp_path: Path) -> None:
    refused = run("inspect", table.name, "--png", str(tmp_path / "nowhere" / "table.png"), REPLAY_SERVER=server.address)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "the picture cannot be written" in refused.stderr


def test_what_was_seen_of_a_table_as_json(server: ServerProcess, new_table: NewTable) -> None:
    table = new_table(name="cli-inspect-json", backend="rank", alpha=1.0)
    table.insert(rows(range(12)), priorities=np.arange(12))
    found = json.loads(run("inspect", table.name, "--json", "--beta", "1", REPLAY_SERVER=server.address).stdout)
    assert (found["looked_at"], found["ranks"], found["beta"]) == (12, list(range(1, 13)), 1.0)
    assert found["exponent_by_rank"] == pytest.approx(-1.0)
    assert found["weights"] == pytest.approx(np.arange(1, 13) / 12)
    assert [row["key"] for row in found["largest"]] == list(range(11, 1, -1))
    assert found["largest"][0]["columns"] == {"number": "11", "obs": "[11, 11, 11]", "done": "false"}


def test_dropping_and_emptying_ask_first(server: ServerProcess, new_table: NewTable) -> None:
    table = new_table(name="cli-drop")
    table.insert(rows(range(12)))
    asked = run("reset", "cli-drop", "--server", server.address, text="n\n")
    assert asked.returncode == 1
    assert "12 rows" in asked.stdout
    assert table.describe().size == 12
    assert "12 rows" in run("reset", "cli-drop", "--yes", "--server", server.address).stdout
    assert table.describe().size == 0
    assert run("drop", "cli-drop", "--server", server.address, text="n\n").returncode == 1
    unanswered = run("drop", "cli-drop", "--server", server.address)
    assert unanswered.returncode == 1
    assert unanswered.stderr == "replay: expected y or n, got no answer; to continue without one, pass --yes\n"
    assert run("drop", "cli-drop", "--server", server.address, text="y\n").returncode == 0
    gone = run("drop", "cli-drop", "--yes", "--server", server.address)
    assert (gone.returncode, gone.stderr) == (1, "replay: there is no table 'cli-drop'; create it first\n")


def test_servers_to_distribute_tables_over_are_not_those_of_an_option() -> None:
    done = run("shards", "set", "nowhere")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("got 'nowhere' (from ADDRESSES)\n")


@pytest.mark.parametrize("command", [["stats", "nowhere"], ["inspect", "nowhere"], ["reset", "nowhere"]])
def test_an_unknown_table_is_one_line(server: ServerProcess, command: list[str]) -> None:
    done = run(*command, "--server", server.address)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "there is no table 'nowhere'" in done.stderr


def test_a_server_that_is_not_there_is_one_line(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server()
    server.kill()
    done = run("tables", "--server", server.address)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert f"no replay server answers at {server.address}" in done.stderr


def test_a_picture_without_matplotlib_says_what_to_install(server: ServerProcess, table: Table) -> None:
    table.insert(rows(range(3)))
    command = ["replay", "inspect", table.name, "--server", server.address]
    code = "import sys; sys.modules['matplotlib'] = None; sys.argv = %r; from replay_client.cli import main; main()"
    for arguments, expected in ((command, 0), ([*command, "--png", "table.png"], 1)):
        done = subprocess.run(
            [sys.executable, "-c", code % arguments],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == expected, done.stderr
    assert "pip install '.[cli]'" in done.stderr


@pytest.mark.parametrize("missing", ["cyclopts", "rich"])
def test_what_is_missing_is_named(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from replay_client.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "pip install '.[cli]'" in done.stderr


@pytest.mark.parametrize(
    ("command", "name", "value"),
    [
        (["shards", "lost", "0.6"], "SHARD", "0.6"),
        (["checkpoint", "create", "--keep", "1.5"], "--keep", "1.5"),
        (["import", "file.parquet", "--capacity", "1.5"], "--capacity", "1.5"),
        (["inspect", "table", "--rows", "2.4"], "--rows", "2.4"),
    ],
)
def test_a_fraction_is_no_whole_number(command: list[str], name: str, value: str) -> None:
    done = run(*command)
    assert (done.returncode, done.stderr) == (2, f"replay: {name}: expected a whole number, got {value!r}\n")


def test_the_help_names_the_variables_of_a_copy() -> None:
    shown = run("copy", "--help").stdout
    assert "_CERT" in shown
    assert "_KEY" in shown


def test_the_command_says_its_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"replay {importlib.metadata.version('replay-service')}\n"


@pytest.mark.parametrize(
    "command",
    [
        ["tables", "--json"],
        ["stats", "--watch"],
        ["inspect", "cli-closed", "--watch", "--json"],
        ["drop", "cli-closed", "-y"],
        ["export", "cli-closed", ".", "--json"],
    ],
    ids=lambda command: command[0],
)
def test_a_closed_pipe_ends_the_command_quietly(
    server: ServerProcess, new_table: NewTable, tmp_path: Path, command: list[str]
) -> None:
    if "export" in command:
        pytest.importorskip("pyarrow")
    new_table(name="cli-closed").insert(rows(range(3)))
    reader, pipe = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [COMMAND, *command],
        stdout=pipe,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment(REPLAY_SERVER=server.address),
        timeout=TIMEOUT_S,
        check=False,
    )
    os.close(pipe)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("command", [["stats", "--json"], ["tables"], ["--help"], ["--version"]])
def test_output_that_cannot_be_written_is_one_line(server: ServerProcess, command: list[str]) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [COMMAND, *command],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(REPLAY_SERVER=server.address),
            timeout=TIMEOUT_S,
            check=False,
        )
    expected = "standard output cannot be written: No space left on device; redirect it to another place\n"
    assert (done.returncode, done.stderr) == (1, f"replay: {expected}")


@pytest.mark.parametrize("seconds", ["inf", "nan", "1e300"])
def test_an_interval_that_never_ends_is_refused(seconds: str) -> None:
    done = run("stats", "--watch", "-n", seconds)
    assert done.returncode == 2
    assert "-n" in done.stderr


def test_figures_go_into_a_pipe_line_by_line_also_while_the_server_is_away(
    start_server: Callable[..., ServerProcess],
) -> None:
    server = start_server()
    with ReplayClient(server.address) as client:
        client.create_table("piped", columns={"x": Column("int64")}, capacity=1000).insert({"x": range(12)})
    command = [COMMAND, "stats", "--watch", "--interval", "0.1", "--server", server.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout is not None
        lines = process.stdout
        first = [lines.readline() for _ in range(3)]
        assert all("piped 12 of 1,000 rows" in line for line in first)
        server.kill()
        shown = (line for line in iter(lines.readline, "") if "server away for" in line)
        away = list(itertools.islice(shown, 3))
        seconds = [float(line.partition("server away for ")[2].partition(" s")[0]) for line in away]
        assert seconds == sorted(seconds)
        assert seconds[-1] > seconds[0]
        server.restart()
        assert any("up " in line for line in itertools.islice(iter(lines.readline, ""), 200))
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 0
    assert not any("\x1b" in line for line in [*first, *away])


def test_ctrl_c_ends_a_command_that_is_still_loading_quietly() -> None:
    command = [sys.executable, "-X", "importtime", "-c", "from replay_client.cli import main; main()", "stats"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        while "rich" not in process.stderr.readline():  # the libraries of the command come last
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert "Traceback" not in process.stderr.read()
    assert process.returncode == 130
