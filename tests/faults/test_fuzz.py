"""Fuzzing, short: see `tests.faults.fuzz`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.fuzz import Figures, FileFuzzer, MessageFuzzer
from tests.faults.message_cost import MessageCosts
from tests.support.wire import METHODS

MESSAGES = 10_000
FILES = 300
COSTLY_BYTES = (1 << 20, 3 << 20)
"""Just what is parsed of a message without rows, and more."""


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
