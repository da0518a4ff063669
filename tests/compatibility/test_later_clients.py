"""Clients of later versions are told what this server does not know, before they use the table."""

from __future__ import annotations

import numpy as np
import pytest
from replay_client import Column, InvalidArgumentError, ReplayClient
from replay_client._learning.answers import BatchReader
from replay_client._operations import server as operations
from replay_proto.schema import Schema
from replay_proto.steps import Steps, Transitions
from replay_proto.v1 import replay_pb2

from tests.support.server_process import ServerProcess

OF_A_LATER_VERSION = b"\xf8\x07\x01"
"""Field 127 of a message, with the value 1."""


@pytest.mark.parametrize("field", ["columns.obs", "steps"])
def test_an_option_that_the_server_ignores_is_refused(field: str, server: ServerProcess) -> None:
    steps = Steps.of({"obs": Column("float32")}, Transitions())
    config = replay_pb2.TableConfig(
        name="later", capacity=100, columns=steps.columns_to_proto(), steps=steps.to_proto()
    )
    changed = config.columns[0].step if field == "columns.obs" else config.steps.transitions
    changed.MergeFromString(OF_A_LATER_VERSION)
    with ReplayClient(server.address) as client:
        with pytest.raises(InvalidArgumentError, match=rf"{field}: .* older version than the client; upgrade it"):
            client._run(operations.create_table(config, "error"))
        assert "later" not in client


def test_an_answer_without_the_information_that_was_asked_for_is_refused() -> None:
    reader = BatchReader(Schema({"x": Column("int64")}), None)
    answer = replay_pb2.SampleResponse(batch=replay_pb2.Batch(keys=np.zeros(1, "<i8").tobytes()), rows=bytes(8))
    assert reader.sampled(answer.SerializeToString(), replay_pb2.Draw()) is not None
    with pytest.raises(InvalidArgumentError, match=r"row_info: .* older version than the client; upgrade it"):
        reader.sampled(answer.SerializeToString(), replay_pb2.Draw(row_info=True))
