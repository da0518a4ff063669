"""Tables that earlier versions stored: `formats/format-N.zip` is a data directory written by version 0.2.0.

Each has a table of capacity 20 for every backend, with the rows 0 to 29 (a queue: 0 to 14) of stream 4 and episode 5,
priorities of 1 + value, two of which were updated, a row 77 of a writer, and one draw of four rows.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support import formulas
from tests.support.caller import CalledTable, Caller
from tests.support.server_process import ServerProcess

FORMATS = Path(__file__).parent / "formats"
WRITER = b"0123456789abcdef"


@pytest.fixture(params=[3, 4])
def stored(
    request: pytest.FixtureRequest, start_server: Callable[..., ServerProcess], tmp_path: Path
) -> tuple[int, ServerProcess]:
    """A format, and a server of such tables."""
    shutil.unpack_archive(FORMATS / f"format-{request.param}.zip", tmp_path)
    (tmp_path / "data").chmod(0o700)
    return request.param, start_server("--data-dir", str(tmp_path / "data"))


def test_tables_of_earlier_formats_are_served_as_they_were(stored: tuple[int, ServerProcess], tmp_path: Path) -> None:
    version, server = stored
    with Caller(server.address) as caller:
        assert sorted(caller.table_names()) == ["fifo", "rank", "sum_tree", "uniform"]
        for name in caller.table_names():
            manifest = json.loads((tmp_path / "data/tables" / name / "manifest.json").read_text("utf-8"))
            assert manifest["format_version"] == version
            check_queue(caller.table(name)) if name == "fifo" else check_priorities(caller.table(name), name)


def check_priorities(table: CalledTable, backend: str) -> None:
    rows = table.read(np.arange(31))
    assert rows.keys.tolist() == list(range(11, 31))
    assert rows.values.tolist() == [*range(11, 30), 77]
    expected = {25: 100.0, 26: 0.5, 30: 100.0}
    priorities = np.array([expected.get(key, 1.0 + key) for key in range(11, 31)])
    assert rows.priorities.tolist() == priorities.tolist()
    assert set(rows.streams[:-1].tolist()) == {4}
    assert set(rows.episodes[:-1].tolist()) == {5}
    parameters = dict(table.describe().config.backend.parameters)
    shares = formulas.probabilities(backend, parameters, priorities)
    drawn = table.sample(400)
    np.testing.assert_allclose(drawn.probabilities, shares[drawn.keys - 11], rtol=1e-9)
    # A repeated insert is recognized, and a new one continues.
    assert table.insert([77], writer_id=WRITER, sequence=1).tolist() == [30]
    assert table.insert([78], writer_id=WRITER, sequence=2).tolist() == [31]


def check_queue(table: CalledTable) -> None:
    assert table.sample(12).values.tolist() == [*range(4, 15), 77]
