"""A table on several servers answers for all of them: it inherits no method that asks only one."""

from __future__ import annotations

from replay_client import ShardedTable, Table
from replay_client._transport.connection import READ_ONLY

from tests.support.wire import METHODS

COMPOSED = {"batch_columns", "sampler", "to_arrow", "to_parquet"}
"""Methods that make no calls, or only call other methods of the table."""
REPEATED_BY_THE_CLIENT = {"UpdatePriorities", "UpdateRows", "Learn", "Insert", "Write", "ReportShard", "SetShards"}
"""Methods that change something; the client itself repeats them if that is safe."""
AT_MOST_ONCE = {"CreateTable", "DropTable", "ResetTable", "Checkpoint", "VerifyCheckpoint"}
"""Methods that take long, or must not be done twice."""


def test_a_table_on_several_servers_has_its_own_version_of_each_method() -> None:
    public = {name for name in dir(Table) if not name.startswith("_")}
    assert public - set(vars(ShardedTable)) == COMPOSED


def test_every_rpc_is_retried_by_grpc_or_not_for_a_reason() -> None:
    assert set(READ_ONLY) | REPEATED_BY_THE_CLIENT | AT_MOST_ONCE == set(METHODS)
