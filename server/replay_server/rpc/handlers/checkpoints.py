"""Handlers of Checkpoint, ListCheckpoints and VerifyCheckpoint."""

from __future__ import annotations

from collections.abc import Iterable

from replay_proto.framing import Framed
from replay_proto.v1 import replay_pb2

from replay_server import errors
from replay_server.checkpoint.store import Checkpoint, Checkpoints
from replay_server.rpc.call import Call
from replay_server.rpc.rights import check_series, series_of
from replay_server.storage.shard_map import ShardMapFile


def describe(checkpoint: Checkpoint) -> replay_pb2.CheckpointDescription:
    """Convert a checkpoint to a message."""
    return replay_pb2.CheckpointDescription(
        name=checkpoint.folder.name,
        directory=str(checkpoint.folder),
        taken_s=checkpoint.manifest.taken_s,
        bytes=checkpoint.manifest.nbytes,
        shards=None if checkpoint.manifest.shards is None else checkpoint.manifest.shards.to_proto(),
        tables=[
            replay_pb2.CheckpointTable(
                name=table.config.name,
                table_uid=table.uid,
                size=table.size,
                inserted=table.state.inserted,
                left_out=table.left_out,
            )
            for table in checkpoint.manifest.tables
        ],
    )


class CheckpointHandlers:
    """Handlers of the checkpoint RPCs."""

    def __init__(self, checkpoints: Checkpoints | None, shards: ShardMapFile) -> None:
        """Use these checkpoints, or None if checkpoints are disabled; ``shards`` is the server's shard map."""
        self._given = checkpoints
        self._shards = shards

    async def create(self, request: Framed[replay_pb2.CheckpointRequest], call: Call) -> bytes:
        """Write a checkpoint."""
        head, series = request.head, series_of(request.head, call.caller)

        def check(tables: Iterable[str]) -> None:
            check_series(call.caller, series, tables)

        made = await self._checkpoints.create(
            list(head.tables),
            series,
            head.keep,
            check,
            number=head.number,
            shard_id=head.shard_id if head.HasField("shard_id") else None,
            client=call.caller.identity,
        )
        return replay_pb2.CheckpointResponse(checkpoint=describe(made)).SerializeToString()

    async def list(self, request: Framed[replay_pb2.ListCheckpointsRequest], call: Call) -> bytes:
        """List all checkpoints."""
        found = await self._checkpoints.all(client=call.caller.identity)
        return replay_pb2.ListCheckpointsResponse(
            checkpoints=map(describe, found.whole),
            shards=self._shards.to_proto(),
            damaged=[
                replay_pb2.CheckpointDescription(name=each.folder.name, directory=str(each.folder), damage=each.damage)
                for each in found.damaged
            ],
        ).SerializeToString()

    async def verify(self, request: Framed[replay_pb2.VerifyCheckpointRequest], call: Call) -> bytes:
        """Verify a checkpoint."""
        found = await self._checkpoints.verify(request.head.name, client=call.caller.identity)
        return replay_pb2.VerifyCheckpointResponse(checkpoint=describe(found)).SerializeToString()

    @property
    def _checkpoints(self) -> Checkpoints:
        if self._given is None:
            raise errors.checkpoints_off()
        return self._given
