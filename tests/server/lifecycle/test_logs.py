"""The log as JSON: one line per event, with its fields."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from replay_server.process.logs import JsonLines

from tests.support.caller import Caller
from tests.support.server_process import ServerProcess, run_to_its_end

JSON = ("--log-format", "json")


def events(server: ServerProcess) -> list[dict[str, Any]]:
    """All events so far; every line is one."""
    return [json.loads(line) for line in server.log().splitlines()]


def test_every_event_is_a_line_with_table_client_and_duration(
    start_server: Callable[..., ServerProcess], call: Callable[[ServerProcess], Caller], tmp_path: Path
) -> None:
    folders = ("--data-dir", str(tmp_path / "data"), "--checkpoint-dir", str(tmp_path / "checkpoints"))
    server = start_server(*JSON, *folders)
    caller = call(server)
    table = caller.create("seen")
    table.insert(range(3))
    caller.checkpoint("seen")
    table.reset()
    table.drop()
    server.wait_for_log("table seen dropped")
    found = {event["message"].partition(":")[0]: event for event in events(server)}
    for message, field in {
        "table seen created": ("table", "seen"),
        "table seen reset": ("table", "seen"),
        "table seen dropped": ("table", "seen"),
        "checkpoint checkpoint-000001 written": ("checkpoint", "checkpoint-000001"),
    }.items():
        event = found[message]
        assert (event["level"], event["client"], event[field[0]]) == ("info", "this host", field[1])
        assert event["duration_s"] >= 0
        assert set(event) == {"time", "level", "logger", "message", "client", field[0], "duration_s"}

    caller.create("kept").insert(range(3))
    server.terminate()
    server.restart()
    restored = next(event for event in events(server) if event["message"].startswith("table kept restored"))
    assert restored["table"] == "kept"
    assert "client" not in restored


def test_calls_add_nothing_to_the_log(
    start_server: Callable[..., ServerProcess], call: Callable[[ServerProcess], Caller]
) -> None:
    server = start_server(*JSON)
    table = call(server).create()
    server.wait_for_log("created")
    before = len(events(server))
    for _ in range(20):
        table.insert(range(3))
        table.sample(2)
        table.update([0], [1.0])
    table.stats()
    server.terminate()
    assert [event["message"] for event in events(server)[before:]] == ["stopping", "stopped"]


def test_a_server_that_cannot_start_says_so_in_json(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = run_to_its_end(*JSON, "--data-dir", str(tmp_path / "file"))
    (event,) = [json.loads(line) for line in ended.stderr.splitlines()]
    assert event["level"] == "error"
    assert "data_dir: expected a writable directory" in event["message"]


def test_a_traceback_is_a_field_and_line_breaks_are_escaped() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.LogRecord("replay", logging.ERROR, __file__, 1, "failed: %s", ("a\nb",), sys.exc_info())
    line = JsonLines().format(record)
    assert "\n" not in line
    event = json.loads(line)
    assert event["message"] == "failed: a\nb"
    assert event["error"].endswith("ValueError: two\nlines")
    assert event["time"].endswith("+00:00")
