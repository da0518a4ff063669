"""Exceptions of this library, one type for each error that a caller may handle.

    try:
        sampler.update_priorities(batch, priorities)
    except TableReplacedError:
        table = client.table("cartpole")      # open the new table with the same name

All are subclasses of `ReplayError`, and have the status code, reason and metadata that the server sent (as a
`google.rpc.ErrorInfo` of the domain "replay.v1"). Some are also subclasses of Python's own types:
`InvalidArgumentError` is a `ValueError`, `DeadlineExceededError` a `TimeoutError`. Both `ReplayError` and
`InvalidArgumentError` are defined in `replay_proto.errors`, because client and server raise them.
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
    """The table does not exist, or was dropped while the call waited."""

    default_code = grpc.StatusCode.NOT_FOUND

    def __str__(self) -> str:
        """The message, without the quotes of a `KeyError`."""
        return self.message


class TableExistsError(ReplayError):
    """The table exists with another config, or with rows of other origin than a copy's.

    ``metadata`` names the ``field`` that differs.
    """

    default_code = grpc.StatusCode.ALREADY_EXISTS


class TableReplacedError(ReplayError):
    """The table was dropped, and another one now has its name. Keys of the old table are invalid."""

    default_code = grpc.StatusCode.FAILED_PRECONDITION


class TableEmptyError(ReplayError):
    """The table has no rows to draw. Pass a `timeout_s` to wait for some."""


class LimitedError(ReplayError):
    """The table's rate limiter or queue does not allow the call now. Pass a `timeout_s` to wait.

    In ``metadata``, ``waited_for`` says what is missing (``rows``, ``samples``, ``inserts`` or ``room``), and ``have``
    and ``needed`` say how many there are and how many are needed, as decimal integers.
    """


class TableResetError(ReplayError):
    """The table was reset while the call waited; the call had no effect."""


class DeadlineExceededError(ReplayError, TimeoutError):
    """The time limit expired.

    If the call waited for rows, samples, inserts or room, ``metadata`` is as in `LimitedError`.
    """

    default_code = grpc.StatusCode.DEADLINE_EXCEEDED


class ResourceExhaustedError(ReplayError):
    """A limit was exceeded (TOO_LARGE; ``metadata`` names it), or the server's disk is full (NO_SPACE)."""

    default_code = grpc.StatusCode.RESOURCE_EXHAUSTED


class ServerStorageError(ReplayError):
    """The operating system refused an operation on the server's files. ``metadata`` has ``error`` and ``file``."""


class ServerUnavailableError(ReplayError, ConnectionError):
    """The server was unreachable or shutting down until the time limit."""

    default_code = grpc.StatusCode.UNAVAILABLE
    silent_s = 0.0
    """Seconds without an answer from the server until the connection was given up; 0 if unknown."""


class UnauthenticatedError(ReplayError, PermissionError):
    """The server requires a token, and the call has none, or an invalid or expired one."""

    default_code = grpc.StatusCode.UNAUTHENTICATED


class PermissionDeniedError(ReplayError, PermissionError):
    """The token lacks a right on a table. ``metadata`` has ``right`` and ``table``."""


class InternalServerError(ReplayError):
    """The server failed and logged the error, or its reply is invalid."""

    default_code = grpc.StatusCode.INTERNAL


class WriterError(ReplayError):
    """The server and a writer disagree about which inserts were applied."""


class SequenceGapError(WriterError):
    """An insert skipped sequence numbers."""


class SequenceTooOldError(WriterError):
    """The insert was applied so long ago that its keys are no longer known."""


class WriterUnknownError(WriterError):
    """The server has forgotten this writer, which was idle for too long."""


class WriterSupersededError(WriterError):
    """Another stream of the same writer was opened."""


class ShardsChangedError(ReplayError):
    """The servers of the service have changed since the caller learned of them. Open the table again."""

    default_code = grpc.StatusCode.ABORTED


class StorageLostError(ReplayError):
    """The directory of the server's tables was removed or taken while the server runs. Restart the server.

    ``metadata`` has the ``folder``.
    """


class CheckpointsOffError(ReplayError):
    """The server has no --checkpoint-dir."""


class CheckpointNotFoundError(ReplayError, LookupError):
    """The checkpoint does not exist."""


class CheckpointDamagedError(ReplayError):
    """A checkpoint file is corrupt. ``metadata`` names the ``file``."""


class ClosedError(ReplayError):
    """The client, writer or sampler is closed."""

    default_code = grpc.StatusCode.CANCELLED


class ConcurrentUseError(ReplayError, RuntimeError):
    """A sampler or reader is in use by another thread or task. Create one for each."""

    default_code = grpc.StatusCode.FAILED_PRECONDITION


class ForkedError(ReplayError):
    """The process was forked. Create a client in the child, or use spawn."""

    default_code = grpc.StatusCode.FAILED_PRECONDITION


class LocalServerError(ReplayError):
    """A `LocalServer` did not start, or died. The message ends with the last lines of its log."""

    default_code = grpc.StatusCode.UNAVAILABLE


class MissingExtraError(ReplayError, ImportError):
    """Libraries of an optional part are not installed; the message says how to install them."""

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
    "TOO_MANY_CONNECTIONS": ServerUnavailableError,
    "MESSAGE_UNFINISHED": ServerUnavailableError,
    "LIMITED": LimitedError,
    "TABLE_RESET": TableResetError,
    "INTERNAL": InternalServerError,
    "UNAUTHENTICATED": UnauthenticatedError,
    "PERMISSION_DENIED": PermissionDeniedError,
    "CHECKPOINTS_OFF": CheckpointsOffError,
    "CHECKPOINT_NOT_FOUND": CheckpointNotFoundError,
    "CHECKPOINT_DAMAGED": CheckpointDamagedError,
    "SHARDS_CHANGED": ShardsChangedError,
    "STORAGE_FAILED": ServerStorageError,
    "STORAGE_LOST": StorageLostError,
}
"""Exception types by reason."""

# Without an ErrorInfo, the status comes from gRPC itself, which reports a broken stream as CANCELLED or INTERNAL.
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
"""Messages for status codes from gRPC itself."""

_CODES: Final[Mapping[int, grpc.StatusCode]] = {code.value[0]: code for code in grpc.StatusCode}


def from_rpc_error(error: grpc.RpcError, address: str) -> ReplayError:
    """Convert the error of a failed call to a server; in gRPC's synchronous API, it is also the call object."""
    try:
        status = rpc_status.from_call(error)
    except ValueError:  # The details do not match the status: an intermediary changed them.
        status = None
    info = _error_info(status)
    if info is None:
        return _of_transport(error.code(), error.details() or "", address)
    refusal = _typed(error.code(), error.details() or "", info)
    if isinstance(refusal, PermissionError):  # the user changes the tokens of this server, or those of the client
        refusal.message = f"the replay server at {address} refused the call: {refusal.message}"
        refusal.args = (refusal.message,)
    return refusal


def from_status(status: status_pb2.Status) -> ReplayError:
    """Convert the status of a refused call."""
    return _typed(_CODES.get(status.code, grpc.StatusCode.UNKNOWN), status.message, _error_info(status))


def _of_transport(code: grpc.StatusCode, detail: str, address: str) -> ReplayError:
    """Convert a status from gRPC itself, and add its text to the metadata, or to the message if we have no words."""
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return _cut_off(detail)
    saying = _SAYINGS.get(code, f"failed with {code.name}: {detail}")
    error = _BY_CODE.get(code, ReplayError)(
        f"the replay server at {address} {saying}", code=code, metadata={"detail": detail}
    )
    note_handshake(error, detail)
    return error


def note_handshake(error: ReplayError, detail: str) -> None:
    """Add gRPC's text to an error if it alone says why TLS failed, for example that a certificate has expired."""
    if "handshake" in detail:
        error.add_note(f"gRPC: {detail}")


def _typed(code: grpc.StatusCode, message: str, info: error_details_pb2.ErrorInfo | None) -> ReplayError:
    if info is None:
        return _BY_CODE.get(code, ReplayError)(message, code=code)
    kind = BY_REASON.get(info.reason) or _BY_CODE.get(code, ReplayError)
    return kind(message, code=code, reason=info.reason, metadata=info.metadata)


def _cut_off(message: str) -> ResourceExhaustedError:
    """Convert gRPC's refusal of an oversized request to the error that the server's own limits raise."""
    setting = "max_request_mb of the server"
    return ResourceExhaustedError(
        f"bytes of a request: gRPC rejected it as far beyond the limit ({setting}): {message}",
        reason="TOO_LARGE",
        metadata={"bound": "bytes of a request", "setting": setting},
    )


def _error_info(status: status_pb2.Status | None) -> error_details_pb2.ErrorInfo | None:
    """Return the service's ErrorInfo; None if the status does not come from the service."""
    for detail in status.details if status is not None else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.domain == ERROR_DOMAIN:
            return info
    return None
