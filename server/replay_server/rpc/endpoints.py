"""All RPCs with their request types, required rights and handlers."""

from __future__ import annotations

from pathlib import Path

from replay_proto.access.tokens import Right
from replay_proto.v1 import replay_pb2

from replay_server.catalog import Catalog
from replay_server.checkpoint.store import Checkpoints
from replay_server.rpc import rights
from replay_server.rpc.endpoint import AnyEndpoint, Endpoint, Handler, M
from replay_server.rpc.handlers.checkpoints import CheckpointHandlers
from replay_server.rpc.handlers.inserts import InsertHandlers
from replay_server.rpc.handlers.inspection import InspectionHandler
from replay_server.rpc.handlers.sampling import SamplingHandlers
from replay_server.rpc.handlers.shards import ShardHandlers
from replay_server.rpc.handlers.stats import StatsHandler
from replay_server.rpc.handlers.tables import TableHandlers
from replay_server.rpc.handlers.updating import UpdatingHandlers
from replay_server.rpc.rights import Demand

SERVICE = replay_pb2.DESCRIPTOR.services_by_name["ReplayService"].full_name


def all_endpoints(
    catalog: Catalog, *, socket: Path | None = None, checkpoints: Checkpoints | None = None
) -> dict[str, AnyEndpoint]:
    """Create all endpoints of the service, by method name; see `ReplayServer` for ``socket``."""
    endpoints: dict[str, AnyEndpoint] = {}

    def add(name: str, request: type[M], demand: Demand, handler: Handler[M], *, is_stream: bool = False) -> None:
        endpoints[name] = Endpoint(request, demand, handler, catalog.bounds, is_stream=is_stream)

    read, write, admin = map(rights.on_table, (Right.READ, Right.WRITE, Right.ADMIN))
    to_describe, to_copy = rights.on_table(Right.any()), rights.to_copy(catalog.bounds.max_tables)

    tables = TableHandlers(catalog, socket=socket)
    add("CreateTable", replay_pb2.CreateTableRequest, rights.TO_CREATE, tables.create)
    add("DropTable", replay_pb2.DropTableRequest, admin, tables.drop)
    add("ListTables", replay_pb2.ListTablesRequest, rights.TO_LIST, tables.list)
    add("DescribeTable", replay_pb2.DescribeTableRequest, to_describe, tables.describe)
    add("ResetTable", replay_pb2.ResetTableRequest, admin, tables.reset)

    inserts = InsertHandlers(catalog)
    add("Insert", replay_pb2.InsertRequest, write, inserts.insert)
    add("Write", replay_pb2.WriteRequest, write, inserts.write, is_stream=True)

    updating = UpdatingHandlers(catalog)
    add("UpdatePriorities", replay_pb2.UpdatePrioritiesRequest, write, updating.priorities)
    add("UpdateRows", replay_pb2.UpdateRowsRequest, write, updating.rows)

    sampling = SamplingHandlers(catalog, same_host=socket is not None)
    add("Sample", replay_pb2.SampleRequest, read, sampling.sample)
    add("Read", replay_pb2.ReadRequest, read, sampling.read)
    add("Learn", replay_pb2.LearnRequest, rights.TO_LEARN, sampling.learn, is_stream=True)

    stats, inspection = StatsHandler(catalog, endpoints), InspectionHandler(catalog)
    add("Stats", replay_pb2.StatsRequest, rights.TO_SEE_FIGURES, stats.stats)
    add("Inspect", replay_pb2.InspectRequest, read, inspection.inspect)

    shards = ShardHandlers(catalog)
    add("GetShards", replay_pb2.GetShardsRequest, rights.FOR_ANY, shards.get)
    add("SetShards", replay_pb2.SetShardsRequest, rights.TO_ADMINISTER_ALL, shards.set)
    add("ReportShard", replay_pb2.ReportShardRequest, write, shards.report)

    kept = CheckpointHandlers(checkpoints, catalog.shards)
    add("Checkpoint", replay_pb2.CheckpointRequest, to_copy, kept.create)
    add("ListCheckpoints", replay_pb2.ListCheckpointsRequest, rights.TO_ADMINISTER_ALL, kept.list)
    add("VerifyCheckpoint", replay_pb2.VerifyCheckpointRequest, rights.TO_ADMINISTER_ALL, kept.verify)
    return endpoints
