"""Random streams in tables of steps; see `tools.faults.step_streams`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.examples import examples
from tools.faults.step_streams import run


@pytest.mark.slow
def test_what_is_drawn_is_what_the_documentation_says(tmp_path: Path) -> None:
    print(run(tmp_path, examples(40)))
