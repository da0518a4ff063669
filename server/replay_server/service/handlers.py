"""All RPCs of the contract, each with the handler that serves it."""

from __future__ import annotations

from collections import defaultdict

import grpc
from replay_proto.v1 import replay_pb2

from replay_server.catalog import Catalog
from replay_server.service.inserts import InsertHandlers
from replay_server.service.rpc import OpenStreams, streaming, unary
from replay_server.service.sampling import SamplingHandlers
from replay_server.service.stats import StatsHandler
from replay_server.service.tables import TableHandlers
from replay_server.statistics.methods import MethodFigures

SERVICE = replay_pb2.DESCRIPTOR.services_by_name["ReplayService"].full_name


def replay_handlers(catalog: Catalog, reply_limit_bytes: int, *, same_host: bool) -> grpc.GenericRpcHandler:
    """The whole service over these tables.

    Args:
        catalog: the tables.
        reply_limit_bytes: how long a reply may be.
        same_host: whether clients on this host may copy rows out of the tables' files.
    """
    figures: dict[str, MethodFigures] = defaultdict(MethodFigures)
    streams = OpenStreams(catalog.bounds.max_streams_per_client)
    tables, inserts = TableHandlers(catalog, same_host=same_host), InsertHandlers(catalog)
    sampling, stats = SamplingHandlers(catalog, reply_limit_bytes, same_host=same_host), StatsHandler(catalog, figures)
    methods = {
        "CreateTable": unary(replay_pb2.CreateTableRequest, tables.create, figures["CreateTable"]),
        "DropTable": unary(replay_pb2.DropTableRequest, tables.drop, figures["DropTable"]),
        "ListTables": unary(replay_pb2.ListTablesRequest, tables.list, figures["ListTables"]),
        "DescribeTable": unary(replay_pb2.DescribeTableRequest, tables.describe, figures["DescribeTable"]),
        "ResetTable": unary(replay_pb2.ResetTableRequest, tables.reset, figures["ResetTable"]),
        "Insert": unary(replay_pb2.InsertRequest, inserts.insert, figures["Insert"]),
        "Write": streaming(replay_pb2.WriteRequest, inserts.write_stream, figures["Write"], streams),
        "Sample": unary(replay_pb2.SampleRequest, sampling.sample, figures["Sample"]),
        "Read": unary(replay_pb2.ReadRequest, sampling.read, figures["Read"]),
        "UpdatePriorities": unary(replay_pb2.UpdatePrioritiesRequest, sampling.update, figures["UpdatePriorities"]),
        "Learn": streaming(replay_pb2.LearnRequest, sampling.learn_stream, figures["Learn"], streams),
        "Stats": unary(replay_pb2.StatsRequest, stats.stats, figures["Stats"]),
    }
    return grpc.method_handlers_generic_handler(SERVICE, methods)
