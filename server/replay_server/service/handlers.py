"""All RPCs of the contract, each with the handler that serves it."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from replay_proto.v1 import replay_pb2

from replay_server.access.caller import Authenticator
from replay_server.catalog import Catalog
from replay_server.checkpoint.store import Checkpoints
from replay_server.service.checkpoints import CheckpointHandlers
from replay_server.service.inserts import InsertHandlers
from replay_server.service.inspection import InspectionHandler
from replay_server.service.rights import Rpc, demands
from replay_server.service.rpc import OpenStreams, Streaming, Unary, unary
from replay_server.service.sampling import SamplingHandlers
from replay_server.service.stats import StatsHandler
from replay_server.service.tables import TableHandlers
from replay_server.statistics.methods import MethodFigures

SERVICE = replay_pb2.DESCRIPTOR.services_by_name["ReplayService"].full_name


def replay_methods(
    catalog: Catalog,
    reply_limit_bytes: int,
    *,
    socket: Path | None,
    frame_port: int = 0,
    authenticator: Authenticator,
    checkpoints: Checkpoints | None = None,
) -> dict[str, Unary | Streaming]:
    """The whole service over these tables, by name of the method.

    Args:
        catalog: the tables.
        reply_limit_bytes: how long a reply may be.
        socket: where clients on this host may make calls without gRPC; None: they may not, nor copy rows out of the
            tables' files.
        frame_port: TCP port where others may; 0: nowhere.
        authenticator: finds out who calls.
        checkpoints: where checkpoints are written; None: nowhere.
    """
    same_host = socket is not None
    figures: dict[str, MethodFigures] = defaultdict(MethodFigures)

    demand = demands(catalog.bounds)

    def rpc(name: str) -> Rpc:
        return Rpc(figures[name], authenticator, demand[name], catalog.bounds)

    streams = OpenStreams(catalog.bounds)
    tables, inserts = TableHandlers(catalog, socket=socket, frame_port=frame_port), InsertHandlers(catalog)
    sampling, stats = SamplingHandlers(catalog, reply_limit_bytes, same_host=same_host), StatsHandler(catalog, figures)
    kept, inspection = CheckpointHandlers(checkpoints), InspectionHandler(catalog)
    return {
        "CreateTable": Unary(replay_pb2.CreateTableRequest, tables.create, rpc("CreateTable")),
        "DropTable": unary(replay_pb2.DropTableRequest, tables.drop, rpc("DropTable")),
        "ListTables": Unary(replay_pb2.ListTablesRequest, tables.list, rpc("ListTables")),
        "DescribeTable": Unary(replay_pb2.DescribeTableRequest, tables.describe, rpc("DescribeTable")),
        "ResetTable": unary(replay_pb2.ResetTableRequest, tables.reset, rpc("ResetTable")),
        "Insert": unary(replay_pb2.InsertRequest, inserts.insert, rpc("Insert")),
        "Write": Streaming(replay_pb2.WriteRequest, inserts.write_stream, rpc("Write"), streams),
        "Sample": unary(replay_pb2.SampleRequest, sampling.sample, rpc("Sample")),
        "Read": unary(replay_pb2.ReadRequest, sampling.read, rpc("Read")),
        "UpdatePriorities": unary(replay_pb2.UpdatePrioritiesRequest, sampling.update, rpc("UpdatePriorities")),
        "Learn": Streaming(replay_pb2.LearnRequest, sampling.learn_stream, rpc("Learn"), streams),
        "Stats": Unary(replay_pb2.StatsRequest, stats.stats, rpc("Stats")),
        "Checkpoint": Unary(replay_pb2.CheckpointRequest, kept.create, rpc("Checkpoint")),
        "ListCheckpoints": unary(replay_pb2.ListCheckpointsRequest, kept.list, rpc("ListCheckpoints")),
        "VerifyCheckpoint": unary(replay_pb2.VerifyCheckpointRequest, kept.verify, rpc("VerifyCheckpoint")),
        "Inspect": unary(replay_pb2.InspectRequest, inspection.inspect, rpc("Inspect")),
    }
