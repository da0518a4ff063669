"""Errors: types, metadata, fork detection."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap
from multiprocessing.connection import Connection as Pipe

import pytest
import replay_client
from replay_client import (
    DeadlineExceededError,
    InvalidArgumentError,
    ReplayClient,
    ReplayError,
    Table,
    TableNotFoundError,
)
from replay_client._operations import server as operations
from replay_client.errors import BY_REASON
from replay_proto.v1 import replay_pb2

from tests.client.numbered import rows
from tests.support.server_process import ServerProcess


def test_every_reason_of_the_contract_has_a_type() -> None:
    reasons = {name.removeprefix("ERROR_REASON_") for name in replay_pb2.ErrorReason.keys()}  # noqa: SIM118
    assert BY_REASON.keys() == reasons - {"UNSPECIFIED"}


def test_every_type_is_public_and_a_replay_error() -> None:
    public = {getattr(replay_client, name) for name in replay_client.__all__}
    for kind in BY_REASON.values():
        assert issubclass(kind, ReplayError)
        assert kind in public


def test_errors_carry_code_reason_and_metadata(client: ReplayClient) -> None:
    with pytest.raises(TableNotFoundError) as refusal:
        client.table("nowhere")
    error = refusal.value
    assert (error.code.name, error.reason, error.metadata) == ("NOT_FOUND", "TABLE_NOT_FOUND", {"table": "nowhere"})
    assert error.message == str(error)


def test_errors_found_here_look_like_those_of_the_server(table: Table) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        table.insert({**rows([1]), "number": [1.5]})
    error = refusal.value
    assert (error.code.name, error.reason) == ("INVALID_ARGUMENT", "INVALID_FIELD")
    assert error.metadata == {"field": "columns.number", "expected": "int64", "got": "float64[1]"}
    assert isinstance(error, ValueError)


def test_a_table_that_was_not_created_in_time_needs_another_time_limit() -> None:
    creation = operations.create_table(replay_pb2.TableConfig(name="huge"), None)
    next(creation)
    with pytest.raises(DeadlineExceededError) as late:
        creation.throw(DeadlineExceededError("the replay server did not answer in time"))
    assert "increase the client's timeout_s" in late.value.__notes__[0]


def test_errors_cross_process_boundaries() -> None:
    error = InvalidArgumentError.of_field("beta", "a number", "'x'")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is InvalidArgumentError
    assert (str(again), again.code, again.reason, again.metadata) == (
        str(error),
        error.code,
        error.reason,
        error.metadata,
    )


FORKING = textwrap.dedent(
    """
    import os, sys
    import numpy as np
    from replay_client import Column, ForkedError, ReplayClient

    client = ReplayClient(sys.argv[1])
    table = client.create_table("forked", columns={"x": Column("int64")}, capacity=100)
    writer, sampler = table.writer(), table.sampler(1, beta=0.0)
    writer.append(x=1)
    writer.flush()
    next(sampler)

    def refused(call):
        try:
            call()
        except ForkedError:
            return True
        return False

    child = os.fork()
    if child == 0:
        calls = [
            client.tables, table.describe, lambda: table.insert({"x": [1]}), lambda: table.sample(1, beta=0.0),
            table.writer, lambda: writer.append(x=2), writer.flush, writer.end_episode,
            lambda: next(sampler), sampler.flush, lambda: sampler.update_priorities([0], [1.0]),
        ]
        were_refused = [refused(call) for call in calls]
        writer.close()
        sampler.close()
        client.close()
        os._exit(0 if all(were_refused) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "a call in the child was not refused"
    writer.append(x=3)
    writer.close()
    sampler.close()
    assert table.describe().inserted == 2
    table.drop()
    """
)


def test_a_client_used_after_a_fork_raises(server: ServerProcess) -> None:
    done = subprocess.run([sys.executable, "-c", FORKING, server.address], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def _insert_in_a_process(address: str, name: str, result: Pipe) -> None:
    with ReplayClient(address) as client:
        result.send(client.table(name).insert(rows([os.getpid()])).tolist())


def test_actors_are_spawned(server: ServerProcess, table: Table) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_insert_in_a_process, args=(server.address, table.name, theirs))
    process.start()
    assert ours.recv() == [0]
    process.join()
    assert table.read([0])["number"].tolist() == [process.pid]


@pytest.mark.parametrize("module", ["torch", "jax", "gymnasium", "cyclopts", "rich", "replay_server", "numba"])
def test_the_library_needs_no_more_than_it_says(module: str) -> None:
    code = f"import sys; sys.modules[{module!r}] = None; import replay_client; assert len(replay_client.__all__) > 20"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
