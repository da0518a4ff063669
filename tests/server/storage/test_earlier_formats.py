"""Tables that earlier versions stored: `formats/format-N.zip` is a data directory written by version 0.2.0.

Those of formats 3 and 4 have a table of capacity 20 for every backend, with the rows 0 to 29 (a queue: 0 to 14) of
stream 4 and episode 5, priorities of 1 + value, two of which were updated, a row 77 of a writer, and one draw of four
rows.

Those of formats 5 and 6 have a table of steps of capacity 20 for every backend but fifo, with Transitions(2): episode 5
of stream 4, the rows 0 to 11, and the beginning of episode 6, the rows 12 to 28. Priorities, the writer's row and the
draw are the same. Two more tables are empty, and have the other items and columns.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from replay_proto.schema import Column
from replay_proto.steps import Discount, Mask, Next, Return, Sequences, Stack, Steps, Transitions
from replay_proto.v1 import replay_pb2
from replay_server.storage.runs import GOES_ON, TRUNCATED

from tests.support import formulas
from tests.support.caller import CalledTable, Caller
from tests.support.rows import WHOLE
from tests.support.server_process import ServerProcess
from tests.support.wire_runs import step_runs

FORMATS = Path(__file__).parent / "formats"
WRITER = b"0123456789abcdef"


SEQUENCES = Steps.of(
    {
        **WHOLE,
        "state": Column("float16", 2, at="start"),
        "stacked": Stack("payload", 3, "repeat"),
        "discount": Discount(),
        "mask": Mask(),
    },
    Sequences(length=4, burn_in=2, period=3, gamma=0.9),
)
TRANSITIONS = Steps.of(
    {
        **WHOLE,
        "reward": Column("float32", sampled=False, optional=True),
        "next": Next("payload"),
        "total": Return("reward"),
        "discount": Discount(),
    },
    Transitions(3, 0.9),
)


@pytest.fixture
def served(
    request: pytest.FixtureRequest, start_server: Callable[..., ServerProcess], tmp_path: Path
) -> Iterator[Caller]:
    """A caller of a server of such tables; the parameter is their format."""
    shutil.unpack_archive(FORMATS / f"format-{request.param}.zip", tmp_path)
    (tmp_path / "data").chmod(0o700)
    for manifest in tmp_path.glob("data/tables/*/manifest.json"):
        assert json.loads(manifest.read_text("utf-8"))["format_version"] == request.param
    with Caller(start_server("--data-dir", str(tmp_path / "data")).address) as caller:
        yield caller


@pytest.mark.parametrize("served", [3, 4], indirect=True)
def test_tables_of_earlier_formats_are_served_as_they_were(served: Caller) -> None:
    assert sorted(served.table_names()) == ["fifo", "rank", "sum_tree", "uniform"]
    for name in served.table_names():
        check_queue(served.table(name)) if name == "fifo" else check_priorities(served.table(name), name)


@pytest.mark.parametrize("served", [5, 6], indirect=True)
def test_tables_of_steps_of_earlier_formats_are_served_as_they_were(served: Caller) -> None:
    assert sorted(served.table_names()) == ["rank", "sequences", "sum_tree", "transitions", "uniform"]
    for backend in ("rank", "sum_tree", "uniform"):
        check_steps(served.table(backend), backend)
    for name, steps in (("sequences", SEQUENCES), ("transitions", TRANSITIONS)):
        config = served.table(name).describe().config
        assert Steps.from_proto(config.steps, config.columns) == steps


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


def check_steps(table: CalledTable, backend: str) -> None:
    rows = table.read(np.arange(31))
    assert rows.keys.tolist() == list(range(10, 30))
    assert rows.values.tolist() == [*range(10, 29), 77]
    assert rows.steps.tolist() == [10, 11, *range(17), 0]
    assert rows.episodes.tolist() == [5, 5, *[6] * 17, 0]
    assert rows.ends.tolist() == [GOES_ON, TRUNCATED, *[GOES_ON] * 18]
    drawable = np.arange(12, 27)
    expected = {20: 100.0, 21: 0.5}
    priorities = np.array([expected.get(key, 1.0 + key) for key in drawable.tolist()])
    assert rows.priorities[2:17].tolist() == priorities.tolist()
    assert table.stats().steps == replay_pb2.StepStats(drawable=15, pending=3, broken=1, closing=1)
    shares = formulas.probabilities(backend, dict(table.describe().config.backend.parameters), priorities)
    drawn = table.sample(400)
    assert set(drawn.keys.tolist()) <= set(drawable.tolist())
    np.testing.assert_allclose(drawn.probabilities, shares[drawn.keys - 12], rtol=1e-9)
    assert drawn.window_sizes.tolist() == [min(key - 12, 2) + 1 + 2 for key in drawn.keys.tolist()]
    # A repeated insert is recognized, and both episodes go on.
    assert table.insert([77], writer_id=WRITER, sequence=1, runs=one_step(6, 0, 0)).tolist() == [29]
    assert table.insert([78], writer_id=WRITER, sequence=2, runs=one_step(6, 0, 1)).tolist() == [30]
    table.insert([29], [28.0], runs=one_step(4, 6, 17))
    assert table.read([27]).priorities.tolist() == [28.0]


def one_step(stream: int, episode: int, step: int) -> replay_pb2.Runs:
    return step_runs([(stream, episode, step, 1, GOES_ON)])
