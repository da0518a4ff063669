"""A sample of system calls that fail; see `tools.faults.syscalls`, which tries all of them."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.support.examples import examples
from tools.faults.failing_calls import FailingCalls
from tools.faults.syscalls import Restoring, Serving

POINTS = 5


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="the library that lets calls fail needs gcc")
def test_whatever_call_fails_requests_are_refused_and_no_acknowledged_row_is_lost(tmp_path: Path) -> None:
    calls = FailingCalls(tmp_path)
    try:
        for script in (Serving(calls, "power", tmp_path), Restoring(calls, "process", tmp_path)):
            points = script.points()
            assert len(points) > 100
            for fault in random.Random(1).sample(points, min(examples(POINTS), len(points))):
                script.run(fault)
    finally:
        calls.close()
