"""Handler of Inspect."""

from __future__ import annotations

import asyncio

import numpy as np
from replay_proto.framing import Framed
from replay_proto.v1 import replay_pb2

from replay_server.catalog import Catalog
from replay_server.flow.turns import OneByOne
from replay_server.rpc.call import Call
from replay_server.rpc.handlers import fields
from replay_server.rpc.handlers.tables import describe
from replay_server.table.inspection import LARGEST_ROWS, MOST_LARGEST_ROWS, Ranked, look, rank, some_ages_s
from replay_server.table.table import Table


class InspectionHandler:
    """Inspects tables in a worker thread, one at a time."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._random = np.random.default_rng()
        # Keep the other worker threads free for gathering rows.
        self._one_at_a_time = OneByOne(catalog.waiting)

    async def inspect(self, request: Framed[replay_pb2.InspectRequest], call: Call) -> bytes:
        """Inspect a table."""
        name, uid = request.head.table, fields.table_uid(request.head.table_uid)
        largest = fields.up_to("largest", MOST_LARGEST_ROWS, request.head.largest) or LARGEST_ROWS
        self._catalog.find(name, uid)
        table, ranked = await self._one_at_a_time.do(call.caller.identity, lambda: self._look(name, uid, largest))
        return _to_proto(table, ranked).SerializeToString()

    async def _look(self, name: str, uid: bytes, largest: int) -> tuple[Table, Ranked]:
        table = self._catalog.find(name, uid)
        seen = await asyncio.to_thread(look, table.live, table.directory.priorities, self._random)
        table = self._catalog.find(name, uid or table.uid)
        ranked = await asyncio.to_thread(rank, seen.still_live(table.oldest), largest)
        return self._catalog.find(name, table.uid), ranked


def _to_proto(table: Table, ranked: Ranked) -> replay_pb2.InspectResponse:
    return replay_pb2.InspectResponse(
        table=describe(table),
        looked_at=ranked.looked_at,
        total_mass=table.total_mass,
        by_rank=replay_pb2.RankedRows(
            ranks=ranked.ranks.tobytes(),
            priorities=ranked.priorities.tobytes(),
            probabilities=table.probabilities(ranked.priorities, ranked.ranks).tobytes(),
        ),
        largest=_largest(table, ranked),
        ages_s=some_ages_s(table).tobytes(),
        times_sampled=[
            replay_pb2.TimesSampled(at_least=at_least, at_most=at_most, rows=rows)
            for at_least, at_most, rows in table.figures.now().times_sampled
        ],
    )


def _largest(table: Table, ranked: Ranked) -> replay_pb2.LargestRows:
    rows = ranked.largest.only(ranked.largest.keys >= table.oldest)
    ranks = np.arange(1, len(rows.keys) + 1)
    return replay_pb2.LargestRows(
        keys=rows.keys.tobytes(),
        priorities=rows.priorities.tobytes(),
        probabilities=table.probabilities(rows.priorities, ranks).tobytes(),
        ages_s=table.figures.ages_s(rows.keys).tobytes(),
        times_sampled=table.figures.times_sampled(rows.keys).tobytes(),
    )
