"""The whole protocol: every RPC is served, every error reason is used."""

from __future__ import annotations

import asyncio
import errno
import inspect
import re
from pathlib import Path

import pytest
from google.rpc import error_details_pb2
from replay_proto.errors import ERROR_DOMAIN, FieldError
from replay_proto.v1 import replay_pb2
from replay_server import errors
from replay_server.auth import Authenticator
from replay_server.catalog import Catalog
from replay_server.errors import RequestError
from replay_server.flow.bounds import Bounds
from replay_server.rpc import statuses
from replay_server.rpc.call import OpenStreams
from replay_server.rpc.endpoints import all_endpoints
from replay_server.rpc.over_grpc.connections import Connections
from replay_server.rpc.over_grpc.methods import grpc_handler
from replay_server.rpc.over_grpc.unfinished import Unfinished
from replay_server.storage.root import Root

from tests.support.refusals import CODES, METADATA
from tests.support.wire import METHODS, STREAMS

CONTRACT = Path(__file__).parents[3] / "proto" / "replay" / "v1" / "replay.proto"
ERRORS: list[RequestError] = [
    errors.invalid_field(FieldError("field", "this", "that")),
    errors.table_not_found("table"),
    errors.table_exists("table", FieldError("field", "this", "that")),
    errors.table_replaced("table"),
    errors.table_empty("table", errors.Lack("rows", 0, 1)),
    errors.waited_too_long("table", 1.5, errors.Lack("rows", 1, 2)),
    errors.limited("table", errors.Lack("samples", 1, 2)),
    errors.table_reset("table"),
    errors.too_large("bytes", 1, 2, "setting"),
    errors.no_space("table", Path("data")),
    errors.sequence_gap(1, 2),
    errors.sequence_too_old(1, 2),
    errors.writer_unknown(2),
    errors.writer_superseded(),
    errors.shutting_down(),
    errors.internal(),
    errors.unauthenticated("no token"),
    errors.permission_denied("name", ["read"], "table"),
    errors.message_unfinished("nothing of it arrived"),
    errors.checkpoints_off(),
    errors.checkpoint_not_found("checkpoint"),
    errors.checkpoint_damaged("checkpoint", "file", "fault"),
    errors.shards_changed(2, 1),
    errors.too_many_connections(3),
    errors.storage_failed(OSError(errno.EIO, "broken", "file")),
    errors.storage_lost(Path("data"), "it was removed"),
]


@pytest.mark.parametrize("method", METHODS)
def test_every_rpc_has_a_handler_of_its_shape(tmp_path: Path, method: str) -> None:
    root = Root.durable(tmp_path)
    endpoints, bounds = all_endpoints(Catalog(root)), Bounds()
    handler = grpc_handler(
        endpoints[method], Authenticator(), OpenStreams(bounds), Connections(1, 1), Unfinished(1 << 20)
    )
    root.close()
    described = replay_pb2.DESCRIPTOR.services_by_name["ReplayService"].methods_by_name[method]
    assert described.client_streaming == described.server_streaming == (method in STREAMS)
    # All handlers take a stream: the message of a unary call is received after the caller is authenticated.
    assert (handler.request_streaming, handler.response_streaming) == (True, described.server_streaming)
    assert asyncio.iscoroutinefunction(handler.stream_stream or handler.stream_unary)


def _reason(error: RequestError) -> str:
    return replay_pb2.ErrorReason.Name(error.reason).removeprefix("ERROR_REASON_")


def test_every_reason_of_the_contract_is_given_by_one_refusal() -> None:
    reasons = [_reason(error) for error in ERRORS]
    assert sorted(["UNSPECIFIED", *reasons]) == sorted(
        name.removeprefix("ERROR_REASON_") for name in replay_pb2.ErrorReason.DESCRIPTOR.values_by_name
    )
    made = [name for name, each in inspect.getmembers(errors, inspect.isfunction) if each.__module__ == errors.__name__]
    assert len([name for name in made if not name.startswith("_")]) == len(ERRORS)


@pytest.mark.parametrize("error", ERRORS, ids=_reason)
def test_a_refusal_is_as_the_contract_documents_its_reason(error: RequestError) -> None:
    reason = _reason(error)
    documented = re.search(r"((?:  // .*\n)+)  ERROR_REASON_" + reason + " = ", CONTRACT.read_text("utf-8"))
    assert documented is not None
    text = " ".join(line.strip().removeprefix("// ") for line in documented[1].splitlines())
    assert text.startswith(statuses.CODES[error.reason].name)
    assert set(error.metadata) == set(re.findall(r"`(\w+)`", text.partition("Metadata:")[2]))
    if reason != "INTERNAL":
        assert (CODES[reason], METADATA[reason]) == (statuses.CODES[error.reason], set(error.metadata))


@pytest.mark.parametrize("error", ERRORS, ids=_reason)
def test_a_refusal_travels_as_an_error_info(error: RequestError) -> None:
    status = statuses.to_status(error)
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.domain, info.reason, dict(info.metadata)) == (ERROR_DOMAIN, _reason(error), error.metadata)
    assert status.code == statuses.CODES[error.reason].value[0]
    assert status.message == str(error)


def test_a_refusal_is_never_too_long_to_travel() -> None:
    for text in ("x" * 100_000, "ß" * 100_000, "\0" * 100_000):
        error = errors.table_exists(text, FieldError(text, text, text))
        assert len(statuses.to_status(error).SerializeToString()) < 6000
        assert str(error).startswith("table ")
