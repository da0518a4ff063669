"""All RPCs of the contract, each with the handler that serves it."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import grpc
from replay_proto.access.tokens import Right
from replay_proto.v1 import replay_pb2

from replay_server.access.caller import Authenticator
from replay_server.catalog import Catalog
from replay_server.checkpoint.store import Checkpoints
from replay_server.service.checkpoints import CheckpointHandlers
from replay_server.service.inserts import InsertHandlers
from replay_server.service.inspection import InspectionHandler
from replay_server.service.rights import (
    Demand,
    Rpc,
    on_table,
    to_administer_all,
    to_copy,
    to_create,
    to_learn,
    to_list,
    to_see_figures,
)
from replay_server.service.rpc import OpenStreams, streaming, unary, unary_of_caller
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
) -> dict[str, grpc.RpcMethodHandler[bytes, bytes]]:
    """The whole service over these tables: its handlers, by name of the method.

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

    def rpc(name: str, demand: Demand) -> Rpc:
        return Rpc(figures[name], authenticator, demand, catalog.bounds)

    streams = OpenStreams(catalog.bounds.max_streams_per_client)
    tables, inserts = TableHandlers(catalog, socket=socket, frame_port=frame_port), InsertHandlers(catalog)
    sampling, stats = SamplingHandlers(catalog, reply_limit_bytes, same_host=same_host), StatsHandler(catalog, figures)
    kept, of_tables, of_all = CheckpointHandlers(checkpoints), to_copy(catalog), to_administer_all(catalog)
    inspection = InspectionHandler(catalog)
    read, write, admin = on_table(Right.READ), on_table(Right.WRITE), on_table(Right.ADMIN)
    return {
        "CreateTable": unary_of_caller(replay_pb2.CreateTableRequest, tables.create, rpc("CreateTable", to_create())),
        "DropTable": unary(replay_pb2.DropTableRequest, tables.drop, rpc("DropTable", admin)),
        "ListTables": unary_of_caller(replay_pb2.ListTablesRequest, tables.list, rpc("ListTables", to_list())),
        "DescribeTable": unary_of_caller(
            replay_pb2.DescribeTableRequest, tables.describe, rpc("DescribeTable", on_table(Right.any()))
        ),
        "ResetTable": unary(replay_pb2.ResetTableRequest, tables.reset, rpc("ResetTable", admin)),
        "Insert": unary(replay_pb2.InsertRequest, inserts.insert, rpc("Insert", write)),
        "Write": streaming(replay_pb2.WriteRequest, inserts.write_stream, rpc("Write", write), streams),
        "Sample": unary(replay_pb2.SampleRequest, sampling.sample, rpc("Sample", read)),
        "Read": unary(replay_pb2.ReadRequest, sampling.read, rpc("Read", read)),
        "UpdatePriorities": unary(replay_pb2.UpdatePrioritiesRequest, sampling.update, rpc("UpdatePriorities", write)),
        "Learn": streaming(replay_pb2.LearnRequest, sampling.learn_stream, rpc("Learn", to_learn()), streams),
        "Stats": unary_of_caller(replay_pb2.StatsRequest, stats.stats, rpc("Stats", to_see_figures())),
        "Checkpoint": unary(replay_pb2.CheckpointRequest, kept.create, rpc("Checkpoint", of_tables)),
        "ListCheckpoints": unary(replay_pb2.ListCheckpointsRequest, kept.list, rpc("ListCheckpoints", of_all)),
        "VerifyCheckpoint": unary(replay_pb2.VerifyCheckpointRequest, kept.verify, rpc("VerifyCheckpoint", of_all)),
        "Inspect": unary(replay_pb2.InspectRequest, inspection.inspect, rpc("Inspect", read)),
    }
