"""Draws of new rows before others, by the server. `test_table_machine.py` has the oracle of plain tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from replay_proto.v1 import replay_pb2
from replay_server.storage.table_config import TableConfig
from replay_server.storage.table_directory import TableDirectory
from replay_server.table.draws import Draw, DrawMode
from replay_server.table.table import NewRows, Table
from scipy import stats

from tests.support.caller import CalledTable, LearnStream, make_draw
from tests.support.drawing import draw_batch
from tests.support.refusals import refused
from tests.support.rows import WHOLE, columns_of

NewTable = Callable[..., CalledTable]
NEWEST = replay_pb2.DRAW_MODE_NEWEST_FIRST
LEAST_P_VALUE = 1e-3


def test_places_without_new_rows_are_drawn_by_priority(new_table: NewTable) -> None:
    """The chi-square is over the places that new rows leave; what they take is certain."""
    table = new_table(parameters={"alpha": 1.0, "epsilon": 0.0}, seed=5, capacity=1000)
    priorities = [1.0, 2.0, 3.0, 4.0]
    table.insert(np.arange(4), priorities)
    table.sample(1, draw_mode=NEWEST)
    found = np.zeros(4)
    for _ in range(200):
        (new,) = table.insert([7], [0.5]).tolist()
        batch = table.sample(9, draw_mode=NEWEST)
        assert (batch.keys[0], batch.probabilities[0]) == (new, pytest.approx(0.5 / 10.5))
        table.update([new], [0.0])
        keys = batch.keys[1:]
        found += np.bincount(keys[keys < 4], minlength=4)
    assert stats.chisquare(found, found.sum() * np.array(priorities) / 10).pvalue > LEAST_P_VALUE


def test_all_batches_of_one_request_share_the_new_rows(new_table: NewTable) -> None:
    table = new_table(capacity=1000)
    table.insert(np.arange(100))
    table.sample(1, draw_mode=NEWEST)
    table.insert(np.arange(100, 110))
    stream = LearnStream(table)
    batches = stream.ask(draw=make_draw(8, draw_mode=NEWEST), batches=2)[1]
    stream.close()
    assert batches[0].keys.tolist() == list(range(109, 101, -1))
    assert batches[1].keys[:2].tolist() == [101, 100]


def test_new_rows_that_were_evicted_are_passed_over_without_a_warning(tmp_path: Path) -> None:
    table = Table(TableDirectory.create(tmp_path, TableConfig("table", WHOLE, 10, "sum_tree", {"alpha": 0.6})))
    newest = Draw(20, beta=0.0, mode=DrawMode.NEWEST_FIRST)

    def insert() -> None:
        table.insert(NewRows(columns_of(np.arange(30)), 30, None, None), None)

    insert()
    draw_batch(table, newest)  # from now on, new rows are remembered
    insert()
    with np.errstate(all="raise"):
        assert draw_batch(table, newest).keys[:10].tolist() == list(range(59, 49, -1))
    table.close()


def test_new_rows_with_the_smallest_masses_are_drawn_too(new_table: NewTable) -> None:
    """A mass that is positive is so small a part of the total that the quotient is 0."""
    table = new_table(parameters={"alpha": 1.0, "epsilon": 0.0}, capacity=1000)
    table.insert([0], [1e200])
    table.sample(1, draw_mode=NEWEST)
    small, _ = table.insert([1, 2], [1e-200, 0.0]).tolist()
    batch = table.sample(3, draw_mode=NEWEST)
    assert batch.keys.tolist() == [small, 0, 0]
    assert 0.0 < batch.probabilities[0] < 1e-300


def test_tables_that_cannot_draw_so_refuse(new_table: NewTable) -> None:
    for options in (
        {"backend": "rank"},
        {"backend": "fifo"},
        {"backend": "uniform", "parameters": {"max_times_sampled": 1}},
    ):
        table = new_table(**options)
        table.insert(np.arange(4))
        with refused("INVALID_FIELD", field="draw_mode"):
            table.sample(2, draw_mode=NEWEST)
