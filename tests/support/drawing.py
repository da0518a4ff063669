"""Draws from tables without a server."""

from __future__ import annotations

from replay_server.storage.delivery_log import ReaderStamp
from replay_server.table.draws import Draw, DrawnBatch
from replay_server.table.table import Table


def draw_batch(table: Table, draw: Draw, stamp: ReaderStamp | None = None) -> DrawnBatch:
    """Draw a batch and hand it out, whether or not the table's gate has granted it."""
    batches = table.draw_at(draw, table.draws.choose_points(draw, 1))
    table.hand_out(batches, stamp=stamp)
    return batches[0]


def draw_batch_again(table: Table, draw: Draw, stamp: ReaderStamp) -> DrawnBatch | None:
    """Repeat a draw; None: its rows are gone."""
    batches = table.draw_again(draw, stamp, draw.batch_size)
    return None if batches is None else batches[0]
