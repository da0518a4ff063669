"""The exceptions that this library raises, one type for each thing a caller may want to handle.

    try:
        sampler.update_priorities(batch, priorities)
    except TableReplacedError:
        table = client.create_table(...)      # somebody dropped it and made a new one

All are `ReplayError`, with the status code, the reason and the metadata that the server sent (the
`google.rpc.ErrorInfo` of the domain "replay.v1"). Two of them come from `replay_proto.errors`: columns, which both ends
share, raise them too. Where Python has a type of its own for the case, the
exception is that too: `InvalidArgumentError` is a `ValueError`, `DeadlineExceededError` a `TimeoutError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status
from replay_proto.errors import ERROR_DOMAIN
from replay_proto.errors import InvalidArgumentError as InvalidArgumentError
from replay_proto.errors import ReplayError as ReplayError


class TableNotFoundError(ReplayError, KeyError):
    """There is no table of this name, or it was dropped while the call waited."""

    default_code = grpc.StatusCode.NOT_FOUND

    def __str__(self) -> str:
        """The message; a `KeyError` would put it into quotes."""
        return self.message


class TableExistsError(ReplayError):
    """A table of this name has another config. ``metadata`` names the ``field`` in which they differ."""

    default_code = grpc.StatusCode.ALREADY_EXISTS


class TableReplacedError(ReplayError):
    """The table was dropped and another one has its name now: keys of the old one mean nothing in it."""

    default_code = grpc.StatusCode.FAILED_PRECONDITION


class TableEmptyError(ReplayError):
    """There is no row to draw. Give a `timeout_s` to wait for some."""

    default_code = grpc.StatusCode.FAILED_PRECONDITION


class LimitedError(ReplayError):
    """The table's rate limiter or queue does not allow this now. Give a `timeout_s` to wait for it.

    ``metadata`` has ``waited_for`` (``rows``, ``samples``, ``inserts`` or ``room``), and how far it was: ``have`` of
    ``needed``, whole numbers in decimal.
    """

    default_code = grpc.StatusCode.FAILED_PRECONDITION


class TableResetError(ReplayError):
    """The table was reset while the call waited; the call had no effect."""

    default_code = grpc.StatusCode.ABORTED


class DeadlineExceededError(ReplayError, TimeoutError):
    """The time given ran out.

    If the call waited for rows, samples, inserts or room, ``metadata`` is as in `LimitedError`.
    """

    default_code = grpc.StatusCode.DEADLINE_EXCEEDED


class ResourceExhaustedError(ReplayError):
    """A bound was passed (TOO_LARGE; ``metadata`` names it) or the server's disk is full (NO_SPACE)."""

    default_code = grpc.StatusCode.RESOURCE_EXHAUSTED


class ServerUnavailableError(ReplayError, ConnectionError):
    """The server could not be reached, or it is shutting down, for as long as we were willing to wait."""

    default_code = grpc.StatusCode.UNAVAILABLE


class UnauthenticatedError(ReplayError, PermissionError):
    """The server wants a token, and the one that was sent, if any, is not valid (any more)."""

    default_code = grpc.StatusCode.UNAUTHENTICATED


class PermissionDeniedError(ReplayError, PermissionError):
    """The token does not give this right on this table. ``metadata`` has ``right`` and ``table``."""

    default_code = grpc.StatusCode.PERMISSION_DENIED


class InternalServerError(ReplayError):
    """A fault of the server, which logged it, or an answer that the contract does not allow."""

    default_code = grpc.StatusCode.INTERNAL


class WriterError(ReplayError):
    """The server and a writer disagree about which inserts were applied."""

    default_code = grpc.StatusCode.FAILED_PRECONDITION


class SequenceGapError(WriterError):
    """An insert skipped sequence numbers."""


class SequenceTooOldError(WriterError):
    """The insert was applied, so long ago that its keys are no longer known."""


class WriterUnknownError(WriterError):
    """The server has forgotten this writer, as it does with those silent for long."""


class WriterSupersededError(WriterError):
    """Another stream of the same writer has begun."""

    default_code = grpc.StatusCode.ABORTED


class CheckpointsOffError(ReplayError):
    """The server has no directory for checkpoints."""

    default_code = grpc.StatusCode.FAILED_PRECONDITION


class CheckpointNotFoundError(ReplayError, LookupError):
    """There is no checkpoint of this name."""

    default_code = grpc.StatusCode.NOT_FOUND


class CheckpointDamagedError(ReplayError):
    """A file of a checkpoint is not what it was written as. ``metadata`` names the ``file``."""

    default_code = grpc.StatusCode.DATA_LOSS


class ClosedError(ReplayError):
    """The client, writer or sampler was closed before."""

    default_code = grpc.StatusCode.CANCELLED


class ForkedError(ReplayError):
    """A connection does not survive a fork. Make a new client in the child, or spawn instead."""

    default_code = grpc.StatusCode.FAILED_PRECONDITION


BY_REASON: Final[Mapping[str, type[ReplayError]]] = {
    "INVALID_FIELD": InvalidArgumentError,
    "TABLE_NOT_FOUND": TableNotFoundError,
    "TABLE_EXISTS": TableExistsError,
    "TABLE_REPLACED": TableReplacedError,
    "TABLE_EMPTY": TableEmptyError,
    "WAITED_TOO_LONG": DeadlineExceededError,
    "TOO_LARGE": ResourceExhaustedError,
    "NO_SPACE": ResourceExhaustedError,
    "SEQUENCE_GAP": SequenceGapError,
    "SEQUENCE_TOO_OLD": SequenceTooOldError,
    "WRITER_UNKNOWN": WriterUnknownError,
    "WRITER_SUPERSEDED": WriterSupersededError,
    "SHUTTING_DOWN": ServerUnavailableError,
    "LIMITED": LimitedError,
    "TABLE_RESET": TableResetError,
    "INTERNAL": InternalServerError,
    "UNAUTHENTICATED": UnauthenticatedError,
    "PERMISSION_DENIED": PermissionDeniedError,
    "CHECKPOINTS_OFF": CheckpointsOffError,
    "CHECKPOINT_NOT_FOUND": CheckpointNotFoundError,
    "CHECKPOINT_DAMAGED": CheckpointDamagedError,
}
"""The type for each reason that the service gives."""

# Without an ErrorInfo it was not the service that spoke but gRPC: CANCELLED and INTERNAL are how it
# reports a stream that was cut off in the middle.
_BY_CODE: Final[Mapping[grpc.StatusCode, type[ReplayError]]] = {
    grpc.StatusCode.UNAVAILABLE: ServerUnavailableError,
    grpc.StatusCode.CANCELLED: ServerUnavailableError,
    grpc.StatusCode.INTERNAL: ServerUnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhaustedError,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgumentError,
    grpc.StatusCode.UNKNOWN: InternalServerError,
}

_SAYINGS: Final[Mapping[grpc.StatusCode, str]] = {
    grpc.StatusCode.UNAVAILABLE: "cannot be reached",
    grpc.StatusCode.CANCELLED: "disconnected in the middle of a reply",
    grpc.StatusCode.INTERNAL: "disconnected in the middle of a reply",
    grpc.StatusCode.DEADLINE_EXCEEDED: "did not answer in time",
    grpc.StatusCode.UNIMPLEMENTED: "does not support this call: it is another version, or not a replay server",
}
"""What a status from gRPC itself, rather than from the service, means to the caller."""

_CODES: Final[Mapping[int, grpc.StatusCode]] = {code.value[0]: code for code in grpc.StatusCode}


def from_rpc_error(error: grpc.RpcError, address: str) -> ReplayError:
    """The typed exception for a call that failed.

    Args:
        error: as the synchronous gRPC API raises it: it is the call, too.
        address: the server's.
    """
    try:
        status = rpc_status.from_call(error)
    except ValueError:  # The details do not belong to this status: somebody between us put them there.
        status = None
    info = _error_info(status)
    if info is None:
        return _of_transport(error.code(), error.details() or "", address)
    return _typed(error.code(), error.details() or "", info)


def from_status(status: status_pb2.Status) -> ReplayError:
    """The typed exception for a call that was refused with this status."""
    return _typed(_CODES.get(status.code, grpc.StatusCode.UNKNOWN), status.message, _error_info(status))


def _of_transport(code: grpc.StatusCode, detail: str, address: str) -> ReplayError:
    """The exception for a status from gRPC itself. gRPC's text is in ``detail`` and in a note."""
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return _cut_off(detail)
    saying = _SAYINGS.get(code, "failed with {code}").format(code=code.name)
    error = _BY_CODE.get(code, ReplayError)(
        f"the replay server at {address} {saying}", code=code, metadata={"detail": detail}
    )
    error.add_note(f"gRPC: {detail}")
    return error


def _typed(code: grpc.StatusCode, message: str, info: error_details_pb2.ErrorInfo | None) -> ReplayError:
    if info is None:
        return _BY_CODE.get(code, ReplayError)(message, code=code)
    kind = BY_REASON.get(info.reason) or _BY_CODE.get(code, ReplayError)
    return kind(message, code=code, reason=info.reason, metadata=info.metadata)


def _cut_off(message: str) -> ResourceExhaustedError:
    """The one bound that gRPC keeps by itself, as the service would have put it had it seen the message."""
    setting = "max_request_mb of the server"
    return ResourceExhaustedError(
        f"bytes of a request: gRPC rejected it as far beyond the limit ({setting}): {message}",
        reason="TOO_LARGE",
        metadata={"bound": "bytes of a request", "setting": setting},
    )


def _error_info(status: status_pb2.Status | None) -> error_details_pb2.ErrorInfo | None:
    """What the service says about the failure; None if it was not the service that failed the call."""
    for detail in status.details if status is not None else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.domain == ERROR_DOMAIN:
            return info
    return None
