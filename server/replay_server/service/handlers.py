"""All RPCs of the contract, each with the handler that serves it."""

from __future__ import annotations

from collections import defaultdict

import grpc
from replay_proto.v1 import replay_pb2

from replay_server.catalog import Catalog
from replay_server.checkpoint.store import Checkpoints
from replay_server.service.checkpoints import CheckpointHandlers
from replay_server.service.inserts import InsertHandlers
from replay_server.service.rpc import streaming, unary
from replay_server.service.sampling import SamplingHandlers
from replay_server.service.stats import StatsHandler
from replay_server.service.tables import TableHandlers
from replay_server.statistics.methods import MethodFigures

SERVICE = replay_pb2.DESCRIPTOR.services_by_name["ReplayService"].full_name


def replay_handlers(
    catalog: Catalog, reply_limit_bytes: int, *, same_host: bool, checkpoints: Checkpoints | None = None
) -> grpc.GenericRpcHandler:
    """The whole service over these tables.

    Args:
        catalog: the tables.
        reply_limit_bytes: how long a reply may be.
        same_host: whether clients on this host may copy rows out of the tables' files.
        checkpoints: where checkpoints are written; None: nowhere.
    """
    figures: dict[str, MethodFigures] = defaultdict(MethodFigures)
    tables, inserts = TableHandlers(catalog, same_host=same_host), InsertHandlers(catalog)
    sampling, stats = SamplingHandlers(catalog, reply_limit_bytes, same_host=same_host), StatsHandler(catalog, figures)
    kept = CheckpointHandlers(checkpoints)
    methods = {
        "CreateTable": unary(replay_pb2.CreateTableRequest, tables.create, figures["CreateTable"]),
        "DropTable": unary(replay_pb2.DropTableRequest, tables.drop, figures["DropTable"]),
        "ListTables": unary(replay_pb2.ListTablesRequest, tables.list, figures["ListTables"]),
        "DescribeTable": unary(replay_pb2.DescribeTableRequest, tables.describe, figures["DescribeTable"]),
        "ResetTable": unary(replay_pb2.ResetTableRequest, tables.reset, figures["ResetTable"]),
        "Insert": unary(replay_pb2.InsertRequest, inserts.insert, figures["Insert"]),
        "Write": streaming(replay_pb2.WriteRequest, inserts.write_stream, figures["Write"]),
        "Sample": unary(replay_pb2.SampleRequest, sampling.sample, figures["Sample"]),
        "Read": unary(replay_pb2.ReadRequest, sampling.read, figures["Read"]),
        "UpdatePriorities": unary(replay_pb2.UpdatePrioritiesRequest, sampling.update, figures["UpdatePriorities"]),
        "Learn": streaming(replay_pb2.LearnRequest, sampling.learn_stream, figures["Learn"]),
        "Stats": unary(replay_pb2.StatsRequest, stats.stats, figures["Stats"]),
        "Checkpoint": unary(replay_pb2.CheckpointRequest, kept.create, figures["Checkpoint"]),
        "ListCheckpoints": unary(replay_pb2.ListCheckpointsRequest, kept.list, figures["ListCheckpoints"]),
        "VerifyCheckpoint": unary(replay_pb2.VerifyCheckpointRequest, kept.verify, figures["VerifyCheckpoint"]),
    }
    return grpc.method_handlers_generic_handler(SERVICE, methods)
