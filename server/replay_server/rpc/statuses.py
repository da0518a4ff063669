"""Converts refusals to gRPC statuses with machine-readable details."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from replay_proto.errors import ERROR_DOMAIN
from replay_proto.v1 import replay_pb2

from replay_server.errors import RequestError

CODES: Final[Mapping[int, grpc.StatusCode]] = {
    replay_pb2.ERROR_REASON_INVALID_FIELD: grpc.StatusCode.INVALID_ARGUMENT,
    replay_pb2.ERROR_REASON_TABLE_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    replay_pb2.ERROR_REASON_TABLE_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    replay_pb2.ERROR_REASON_TABLE_REPLACED: grpc.StatusCode.FAILED_PRECONDITION,
    replay_pb2.ERROR_REASON_TABLE_EMPTY: grpc.StatusCode.FAILED_PRECONDITION,
    replay_pb2.ERROR_REASON_WAITED_TOO_LONG: grpc.StatusCode.DEADLINE_EXCEEDED,
    replay_pb2.ERROR_REASON_LIMITED: grpc.StatusCode.FAILED_PRECONDITION,
    replay_pb2.ERROR_REASON_TABLE_RESET: grpc.StatusCode.ABORTED,
    replay_pb2.ERROR_REASON_TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    replay_pb2.ERROR_REASON_NO_SPACE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    replay_pb2.ERROR_REASON_SEQUENCE_GAP: grpc.StatusCode.FAILED_PRECONDITION,
    replay_pb2.ERROR_REASON_SEQUENCE_TOO_OLD: grpc.StatusCode.FAILED_PRECONDITION,
    replay_pb2.ERROR_REASON_WRITER_UNKNOWN: grpc.StatusCode.FAILED_PRECONDITION,
    replay_pb2.ERROR_REASON_WRITER_SUPERSEDED: grpc.StatusCode.ABORTED,
    replay_pb2.ERROR_REASON_SHUTTING_DOWN: grpc.StatusCode.UNAVAILABLE,
    replay_pb2.ERROR_REASON_MESSAGE_UNFINISHED: grpc.StatusCode.UNAVAILABLE,
    replay_pb2.ERROR_REASON_CHECKPOINTS_OFF: grpc.StatusCode.FAILED_PRECONDITION,
    replay_pb2.ERROR_REASON_CHECKPOINT_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    replay_pb2.ERROR_REASON_CHECKPOINT_DAMAGED: grpc.StatusCode.DATA_LOSS,
    replay_pb2.ERROR_REASON_SHARDS_CHANGED: grpc.StatusCode.ABORTED,
    replay_pb2.ERROR_REASON_TOO_MANY_CONNECTIONS: grpc.StatusCode.UNAVAILABLE,
    replay_pb2.ERROR_REASON_STORAGE_FAILED: grpc.StatusCode.FAILED_PRECONDITION,
    replay_pb2.ERROR_REASON_STORAGE_LOST: grpc.StatusCode.FAILED_PRECONDITION,
    replay_pb2.ERROR_REASON_INTERNAL: grpc.StatusCode.INTERNAL,
    replay_pb2.ERROR_REASON_UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    replay_pb2.ERROR_REASON_PERMISSION_DENIED: grpc.StatusCode.PERMISSION_DENIED,
}
"""Status codes by reason."""
_REASON_PREFIX: Final = "ERROR_REASON_"


def to_status(refusal: RequestError) -> status_pb2.Status:
    """Convert a refusal to a google.rpc.Status with an ErrorInfo."""
    info = error_details_pb2.ErrorInfo(
        reason=replay_pb2.ErrorReason.Name(refusal.reason).removeprefix(_REASON_PREFIX),
        domain=ERROR_DOMAIN,
        metadata=refusal.metadata,
    )
    detail = any_pb2.Any()
    detail.Pack(info)
    return status_pb2.Status(code=CODES[refusal.reason].value[0], message=str(refusal), details=[detail])
