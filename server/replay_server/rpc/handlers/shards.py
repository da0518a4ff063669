"""Handlers of GetShards, SetShards and ReportShard."""

from __future__ import annotations

import secrets

from replay_proto.errors import FieldError
from replay_proto.framing import Framed
from replay_proto.v1 import replay_pb2

from replay_server import __version__, errors
from replay_server.catalog import Catalog
from replay_server.rpc.call import Call
from replay_server.rpc.handlers import fields
from replay_server.storage.format import UID_BYTES
from replay_server.storage.ranges import KEYS, LARGEST_MASS, Range
from replay_server.storage.shard_map import ShardMap


class ShardHandlers:
    """Handlers of RPCs about shards."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._kept = catalog.shards
        self._server_uid = secrets.token_bytes(UID_BYTES)

    async def get(self, _request: Framed[replay_pb2.GetShardsRequest], _call: Call) -> bytes:
        """Return the shard map."""
        return replay_pb2.GetShardsResponse(
            map=self._kept.to_proto(), server_uid=self._server_uid, version=__version__
        ).SerializeToString()

    async def set(self, request: Framed[replay_pb2.SetShardsRequest], _call: Call) -> bytes:
        """Replace the shard map, if the caller knows its current version."""
        new = ShardMap.from_proto(request.head.map)
        expected = request.head.expected_version
        current = self._kept.current
        if expected != self._kept.version:
            raise errors.shards_changed(self._kept.version, expected)
        new.check_newer(self._kept.version)
        if current is not None:
            new.check_follows(current)
        self._catalog.owner.look()
        self._catalog.owner.check()
        self._kept.replace(new)
        return replay_pb2.SetShardsResponse().SerializeToString()

    async def report(self, request: Framed[replay_pb2.ReportShardRequest], _call: Call) -> bytes:
        """Store a client's report on another shard, unless the stored report on that shard counts more inserts."""
        table = self._catalog.find(request.head.table, fields.table_uid(request.head.table_uid))
        given, current = request.head.report, self._kept.current
        if current is None or not current.has(given.shard_id):
            raise FieldError("report.shard_id", "a shard in the shard map of this server", str(given.shard_id))
        KEYS.check("report.inserted", given.inserted)
        Range(0, min(given.inserted, table.config.whole_most_live)).check("report.size", given.size)
        if not 0.0 <= given.total_mass <= LARGEST_MASS:
            raise FieldError("report.total_mass", f"a number from 0 to {LARGEST_MASS:.3g}", str(given.total_mass))
        before = table.reports.get(given.shard_id)
        if before is None or given.inserted >= before.inserted:
            mass = given.total_mass or (before.total_mass if before is not None else 0.0)
            table.reports[given.shard_id] = replay_pb2.ShardReport(
                shard_id=given.shard_id, inserted=given.inserted, size=given.size, total_mass=mass
            )
        return replay_pb2.ReportShardResponse().SerializeToString()
