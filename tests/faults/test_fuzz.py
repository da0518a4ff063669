"""A short fuzzing run; see `tools.faults.fuzz`."""

from __future__ import annotations

from pathlib import Path

import pytest
from replay_proto.schema import Column, Schema

from tests.support.caller import Caller
from tests.support.server_process import ServerProcess
from tests.support.wire import METHODS, call_raw
from tools.faults.fuzz import Figures, FileFuzzer, MessageFuzzer
from tools.faults.message_cost import PROBED, LoopWatch, MessageCosts

MESSAGES = 2_000
FILES = 150
COSTLY_BYTES = (1 << 20, 3 << 20)
"""The largest message without rows that is parsed, and a larger one."""
CALLS = 25
"""The kernel counts CPU time in steps of 10 ms, which is as long as one call takes."""


@pytest.mark.slow
def test_no_message_breaks_a_server(tmp_path: Path) -> None:
    fuzzer = MessageFuzzer(tmp_path, seed=5)
    try:
        fuzzer.run(MESSAGES)
        assert fuzzer.server.terminate() == 0
    finally:
        fuzzer.server.kill()
    figures = fuzzer.figures
    assert figures.messages > MESSAGES // 2
    assert figures.answered.total() > MESSAGES // 100
    assert figures.refused.total() > MESSAGES // 10


def test_no_damaged_file_breaks_the_loader(tmp_path: Path) -> None:
    figures = Figures()
    FileFuzzer(tmp_path, figures, seed=5).run(FILES)
    assert figures.files == 2 * FILES
    assert FILES < figures.files_refused <= figures.files


@pytest.mark.timed
def test_no_message_makes_others_wait(tmp_path: Path) -> None:
    measured = MessageCosts(tmp_path)
    try:
        costs = measured.run(COSTLY_BYTES)
    finally:
        measured.close()
    assert {*METHODS, "frames", "health", "reflection"} == {*costs.worst}
    assert costs.too_expensive() == []


@pytest.mark.timed
@pytest.mark.parametrize("method", ["ListTables", "Stats"])
def test_a_question_about_all_tables_leaves_room_for_others(tmp_path: Path, method: str) -> None:
    server = ServerProcess(tmp_path / "log", "--memory-dir", str(tmp_path))
    try:
        with Caller(server.address) as caller:
            schema = Schema({f"column-{index}": Column("bool") for index in range(150)})
            for index in range(12):
                caller.create(f"table-{index}", schema=schema)
            caller.create(PROBED)
            with LoopWatch(server).watching() as watch:
                before = server.cpu_s
                stalls = [watch.stall_ms(lambda: call_raw(caller.channel, method, b"")) for _ in range(CALLS)]
                answering_ms = (server.cpu_s - before) / CALLS * 1000
            assert min(stalls) < answering_ms / 2  # without turns, it would be three quarters
    finally:
        server.kill()
