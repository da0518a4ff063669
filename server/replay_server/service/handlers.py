"""All RPCs of the contract, each with the handler that serves it."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import grpc
from replay_proto.v1 import replay_pb2

from replay_server.catalog import Catalog
from replay_server.service.inserts import InsertHandlers
from replay_server.service.rpc import streaming, unary
from replay_server.service.sampling import SamplingHandlers
from replay_server.service.stats import StatsHandler
from replay_server.service.tables import TableHandlers
from replay_server.statistics.methods import MethodFigures

SERVICE = replay_pb2.DESCRIPTOR.services_by_name["ReplayService"].full_name


def replay_methods(
    catalog: Catalog, reply_limit_bytes: int, *, socket: Path | None
) -> dict[str, grpc.RpcMethodHandler[bytes, bytes]]:
    """The whole service over these tables: its handlers, by name of the method.

    Args:
        catalog: the tables.
        reply_limit_bytes: how long a reply may be.
        socket: where clients on this host may make calls without gRPC; None: they may not, nor copy rows out of the
            tables' files.
    """
    same_host = socket is not None
    figures: dict[str, MethodFigures] = defaultdict(MethodFigures)
    tables, inserts = TableHandlers(catalog, socket=socket), InsertHandlers(catalog)
    sampling, stats = SamplingHandlers(catalog, reply_limit_bytes, same_host=same_host), StatsHandler(catalog, figures)
    return {
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
    }
