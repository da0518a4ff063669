"""Refusals as a caller sees them: status code, and the ErrorInfo's reason and metadata."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from replay_proto.errors import ERROR_DOMAIN
from replay_proto.v1 import replay_pb2

CODES = {
    "INVALID_FIELD": grpc.StatusCode.INVALID_ARGUMENT,
    "TABLE_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "TABLE_EXISTS": grpc.StatusCode.ALREADY_EXISTS,
    "TABLE_REPLACED": grpc.StatusCode.FAILED_PRECONDITION,
    "TABLE_EMPTY": grpc.StatusCode.FAILED_PRECONDITION,
    "WAITED_TOO_LONG": grpc.StatusCode.DEADLINE_EXCEEDED,
    "TOO_LARGE": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "NO_SPACE": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "SEQUENCE_GAP": grpc.StatusCode.FAILED_PRECONDITION,
    "SEQUENCE_TOO_OLD": grpc.StatusCode.FAILED_PRECONDITION,
    "WRITER_UNKNOWN": grpc.StatusCode.FAILED_PRECONDITION,
    "WRITER_SUPERSEDED": grpc.StatusCode.ABORTED,
    "SHUTTING_DOWN": grpc.StatusCode.UNAVAILABLE,
    "TOO_MANY_CONNECTIONS": grpc.StatusCode.UNAVAILABLE,
    "UNAUTHENTICATED": grpc.StatusCode.UNAUTHENTICATED,
    "PERMISSION_DENIED": grpc.StatusCode.PERMISSION_DENIED,
    "LIMITED": grpc.StatusCode.FAILED_PRECONDITION,
    "TABLE_RESET": grpc.StatusCode.ABORTED,
    "CHECKPOINTS_OFF": grpc.StatusCode.FAILED_PRECONDITION,
    "CHECKPOINT_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "CHECKPOINT_DAMAGED": grpc.StatusCode.DATA_LOSS,
    "SHARDS_CHANGED": grpc.StatusCode.ABORTED,
    "STORAGE_FAILED": grpc.StatusCode.FAILED_PRECONDITION,
    "STORAGE_LOST": grpc.StatusCode.FAILED_PRECONDITION,
    "MESSAGE_UNFINISHED": grpc.StatusCode.UNAVAILABLE,
}
"""Documented status codes by reason."""

METADATA = {
    "INVALID_FIELD": {"field", "expected", "got"},
    "TABLE_NOT_FOUND": {"table"},
    "TABLE_EXISTS": {"table", "field", "expected", "got"},
    "TABLE_REPLACED": {"table"},
    "TABLE_EMPTY": {"table", "waited_for", "have", "needed"},
    "WAITED_TOO_LONG": {"table", "waited_for", "have", "needed"},
    "TOO_LARGE": {"bound", "limit", "got", "setting"},
    "NO_SPACE": {"table"},
    "SEQUENCE_GAP": {"expected", "got"},
    "SEQUENCE_TOO_OLD": {"oldest_known", "got"},
    "WRITER_UNKNOWN": {"got"},
    "WRITER_SUPERSEDED": set[str](),
    "SHUTTING_DOWN": set[str](),
    "TOO_MANY_CONNECTIONS": {"bound", "limit", "setting"},
    "UNAUTHENTICATED": set[str](),
    "PERMISSION_DENIED": {"right", "table"},
    "LIMITED": {"table", "waited_for", "have", "needed"},
    "TABLE_RESET": {"table"},
    "CHECKPOINTS_OFF": {"setting"},
    "CHECKPOINT_NOT_FOUND": {"checkpoint"},
    "CHECKPOINT_DAMAGED": {"checkpoint", "file"},
    "SHARDS_CHANGED": {"current", "expected"},
    "STORAGE_FAILED": {"error", "file"},
    "STORAGE_LOST": {"folder"},
    "MESSAGE_UNFINISHED": set(),
}
"""Documented metadata by reason."""


@dataclass
class Refusal:
    """Why a call was refused."""

    code: grpc.StatusCode | None = None
    reason: str = ""
    message: str = ""
    metadata: dict[str, str] = field(default_factory=dict)


def code_of(error: grpc.RpcError) -> grpc.StatusCode:
    """The status code of a failed call. gRPC's errors are also calls, but not by their types."""
    call: Any = error
    code: grpc.StatusCode = call.code()
    return code


def refusal_in(error: grpc.RpcError) -> Refusal:
    """Decode a refusal, checking that it follows the protocol."""
    status = rpc_status.from_call(error)
    assert status is not None, f"a refusal without details: {error}"
    assert len(status.details) == 1
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info), "the detail is no ErrorInfo"
    assert info.domain == ERROR_DOMAIN
    assert f"ERROR_REASON_{info.reason}" in replay_pb2.ErrorReason.DESCRIPTOR.values_by_name
    assert info.reason in CODES, f"the server says that it is at fault: {error}"
    code = code_of(error)
    assert code is CODES[info.reason], f"{info.reason} came with {code}"
    assert set(info.metadata) == METADATA[info.reason]
    return Refusal(code, info.reason, status.message, dict(info.metadata))


@contextmanager
def refused(reason: str, **metadata: object) -> Iterator[Refusal]:
    """Expect a refusal with this reason, its code in the protocol, and at least this metadata.

    Yields:
        The refusal; filled in when the block has ended.
    """
    refusal = Refusal()
    try:
        yield refusal
    except grpc.RpcError as error:
        found = refusal_in(error)
        assert found.reason == reason, f"{found.reason} instead of {reason}: {found.message}"
        differing = {
            name: found.metadata.get(name) for name in metadata if found.metadata.get(name) != str(metadata[name])
        }
        assert not differing, f"metadata {differing} instead of {metadata}"
        refusal.__dict__.update(found.__dict__)
    else:
        raise AssertionError(f"it was not refused; expected {reason}")
