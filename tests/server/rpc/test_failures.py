"""Errors that no handler expects: what callers and the log are told."""

from __future__ import annotations

import asyncio
import logging

import pytest
from grpc import StatusCode
from replay_proto.access.tokens import Right
from replay_proto.framing import Framed
from replay_proto.v1 import replay_pb2
from replay_server.auth import Caller
from replay_server.errors import RequestError
from replay_server.flow.bounds import Bounds
from replay_server.rpc.call import Call
from replay_server.rpc.endpoint import Endpoint
from replay_server.rpc.rights import on_table
from replay_server.rpc.statuses import CODES


async def fail(_request: Framed[replay_pb2.SampleRequest], _call: Call) -> bytes:
    """A handler with a fault."""
    raise ZeroDivisionError("a fault")


def test_a_fault_is_one_event_with_method_table_client_and_duration(caplog: pytest.LogCaptureFixture) -> None:
    endpoint = Endpoint(replay_pb2.SampleRequest, on_table(Right.READ), fail, Bounds())
    data = replay_pb2.SampleRequest(table="seen").SerializeToString()
    with caplog.at_level(logging.INFO), pytest.raises(RequestError) as error:
        asyncio.run(endpoint.answer(data, Call(Caller("a learner"))))
    assert CODES[endpoint.as_refusal(error.value).reason] is StatusCode.INTERNAL
    (event,) = caplog.records
    assert event.getMessage() == "a request failed: Sample for table seen"
    fields = vars(event)
    assert (fields["method"], fields["table"], fields["client"]) == ("Sample", "seen", "a learner")
    assert 0 < fields["duration_s"] < 1
    assert "ZeroDivisionError: a fault" in caplog.text
