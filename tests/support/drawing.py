"""Draws from tables without a server."""

from __future__ import annotations

from replay_server.table.draws import Draw, DrawnBatch
from replay_server.table.table import Table


def draw_batch(table: Table, draw: Draw) -> DrawnBatch:
    """Draw a batch and hand it out, whether or not the table's gate has granted it."""
    batches = table.draw_at(draw, table.draws.choose_points(draw, 1))
    table.hand_out(batches)
    return batches[0]
