"""Refusals, each with a reason from the protocol and the information needed to fix the request."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from replay_proto.errors import FieldError
from replay_proto.v1 import replay_pb2
from replay_proto.waits import ENDS, LACKS, waited_text

_SHARED_MEMORY = "/dev/shm"
_MORE_MEMORY = " (or start the server with another --memory-dir or --data-dir, or its container with --shm-size)"
_LONGEST_TEXT = 512
"""Maximum characters of a message or metadata value: gRPC drops statuses with more than a few kilobytes."""


class FatalError(Exception):
    """The server cannot start or shut down properly; the message says why."""


class StoppedError(Exception):
    """Work in a thread ended early, because the server is shutting down; the message names the work."""


class RequestError(Exception):
    """A request was refused and had no effect."""

    def __init__(self, reason: str, message: str, **metadata: object) -> None:
        """Create a refusal.

        Args:
            reason: an `ErrorReason` of the protocol, without its prefix ``ERROR_REASON_``.
            message: tells people what was expected, what was received and what to do.
            **metadata: details for programs; the protocol lists them for each reason.
        """
        super().__init__(_shortened(message))
        self.reason = replay_pb2.ErrorReason.Value(f"ERROR_REASON_{reason}")
        self.metadata = {name: _shortened(str(value)) for name, value in metadata.items()}


def _shortened(text: str) -> str:
    """Shorten a text that is too long by cutting out its middle."""
    half = _LONGEST_TEXT // 2
    return text if len(text) <= _LONGEST_TEXT else f"{text[:half]}...{text[-half:]}"


def invalid_field(error: FieldError) -> RequestError:
    """A field is invalid."""
    return RequestError("INVALID_FIELD", str(error), field=error.field, expected=error.expected, got=error.got)


def table_not_found(name: str) -> RequestError:
    """The table does not exist."""
    return RequestError("TABLE_NOT_FOUND", f"there is no table {name!r}; create it first", table=name)


def table_exists(name: str, difference: FieldError) -> RequestError:
    """The table exists with another config."""
    field, expected, got = difference.field, difference.expected, difference.got
    message = (
        f"table {name!r} exists with another config: {field} is {expected}, asked for {got}; drop it, or choose "
        "another name"
    )
    return RequestError("TABLE_EXISTS", message, table=name, field=field, expected=expected, got=got)


def table_replaced(name: str) -> RequestError:
    """The caller refers to an earlier table with this name."""
    message = f"table {name!r} has another uid: it was dropped and created again; look it up again"
    return RequestError("TABLE_REPLACED", message, table=name)


WaitedFor = Literal["rows", "windows", "samples", "inserts", "room", "turn"]
"""What a call waits for."""


@dataclass(frozen=True)
class Lack:
    """How much a call needs to proceed, and how much there is. A refusal carries these fields as metadata."""

    waited_for: WaitedFor
    have: int
    """Available amount, below ``needed``; capacity for ``"windows"``."""
    needed: int
    """Amount that lets the call proceed; see `LACKS` for units."""

    def __str__(self) -> str:
        """Text for messages, such as "3,120 of 10,000 rows"."""
        return LACKS[self.waited_for].format(have=self.have, needed=self.needed)


def table_empty(name: str, lack: Lack) -> RequestError:
    """The table has no rows that can be drawn."""
    if lack.waited_for == "windows":
        message = f"table {name!r} has no steps to draw, although it is full: {lack}; {ENDS['windows']}"
        return RequestError("TABLE_EMPTY", message, table=name, **asdict(lack))
    message = f"table {name!r} has no rows to draw: 0 of {lack.needed:,}; insert some, or sample with a timeout"
    return RequestError("TABLE_EMPTY", message, table=name, waited_for="rows", have=0, needed=lack.needed)


def waited_too_long(name: str, wait_s: float, lack: Lack) -> RequestError:
    """A wait exceeded its time limit."""
    message = waited_text(name, wait_s, lack.waited_for, lack.have, lack.needed)
    return RequestError("WAITED_TOO_LONG", message, table=name, **asdict(lack))


def limited(name: str, lack: Lack) -> RequestError:
    """The rate limiter or queue does not allow the call now, and the caller does not wait."""
    message = f"table {name!r}: {ENDS[lack.waited_for]}: {lack}; retry later, or set a timeout to wait"
    return RequestError("LIMITED", message, table=name, **asdict(lack))


def table_reset(name: str) -> RequestError:
    """The table was reset while a call waited for it."""
    message = f"table {name!r} was reset while the call waited; the call had no effect, retry it if needed"
    return RequestError("TABLE_RESET", message, table=name)


def too_large(bound: str, limit: int, got: int, setting: str) -> RequestError:
    """A limit was exceeded."""
    message = f"{bound}: at most {limit} allowed ({setting}), got {got}"
    return RequestError("TOO_LARGE", message, bound=bound, limit=limit, got=got, setting=setting)


def too_many_connections(limit: int) -> RequestError:
    """The lane of the caller's host is full."""
    bound, setting = "connections of one lane of hosts", "max_connections of the server"
    message = (
        f"{bound}: at most {limit} allowed ({setting}), and all are in use; close some, share clients within a "
        "process, or raise --max-connections"
    )
    return RequestError("TOO_MANY_CONNECTIONS", message, bound=bound, limit=limit, setting=setting)


def no_space(name: str, folder: Path, what: str = "table", error: OSError | MemoryError | None = None) -> RequestError:
    """The file system of the tables or checkpoints is full, or the memory; ``error`` says more."""
    why = f" ({error.filename}: {error.strerror})" if isinstance(error, OSError) and error.filename else ""
    more = _MORE_MEMORY if folder.is_relative_to(_SHARED_MEMORY) else ""
    message = f"no space left for {what} {name!r} in {folder}{why}; free some{more}, then retry"
    return RequestError("NO_SPACE", message, table=name if what == "table" else "")


def storage_failed(error: OSError) -> RequestError:
    """The operating system refused an operation on the server's files."""
    file = str(error.filename or "")
    name = errno.errorcode.get(error.errno or 0, type(error).__name__)
    where = f" at {file}" if file else ""
    message = (
        f"the server's storage failed{where}: {error.strerror or error}; the call had no effect; check the disk, and "
        "the limits of the server's process, then retry"
    )
    return RequestError("STORAGE_FAILED", message, error=name, file=file)


def sequence_gap(expected: int, got: int) -> RequestError:
    """A writer skipped a sequence number."""
    message = f"sequence: expected {expected}, got {got}; resend the unacknowledged inserts in order"
    return RequestError("SEQUENCE_GAP", message, expected=expected, got=got)


def sequence_too_old(oldest_known: int, got: int) -> RequestError:
    """A retry came too late: the server no longer remembers the insert's keys."""
    message = f"sequence {got} was applied, but its keys are no longer known (oldest known: {oldest_known})"
    return RequestError("SEQUENCE_TOO_OLD", message, oldest_known=oldest_known, got=got)


def writer_unknown(got: int) -> RequestError:
    """The first insert of an unknown writer does not have sequence number 1."""
    message = (
        f"unknown writer: expected sequence 1, got {got}; it was idle for too long, or the table was created again; "
        "continue as a new writer"
    )
    return RequestError("WRITER_UNKNOWN", message, got=got)


def writer_superseded() -> RequestError:
    """The same writer opened another stream."""
    return RequestError("WRITER_SUPERSEDED", "another stream of the same writer was opened; only one can be open")


def shutting_down() -> RequestError:
    """The server is shutting down."""
    return RequestError("SHUTTING_DOWN", "the server is shutting down; retry once it is back")


def message_unfinished(why: str) -> RequestError:
    """The call ended because a message of its connection was begun and not finished."""
    return RequestError(
        "MESSAGE_UNFINISHED",
        f"a message on this connection was not complete, and {why}; the calls of the connection end: send again",
    )


def checkpoints_off() -> RequestError:
    """The server has no checkpoint directory."""
    message = "checkpoints are off: start the server with --checkpoint-dir"
    return RequestError("CHECKPOINTS_OFF", message, setting="checkpoint_dir")


def checkpoint_not_found(name: str) -> RequestError:
    """The checkpoint does not exist."""
    message = f"there is no checkpoint {name!r}; `replay checkpoint list` lists the existing ones"
    return RequestError("CHECKPOINT_NOT_FOUND", message, checkpoint=name)


def checkpoint_damaged(name: str, file: str, fault: str) -> RequestError:
    """A checkpoint is corrupt."""
    message = f"checkpoint {name!r} is corrupt: {fault}; use another one"
    return RequestError("CHECKPOINT_DAMAGED", message, checkpoint=name, file=file)


def shards_changed(current: int, expected: int) -> RequestError:
    """The shard map has another version than the caller expects."""
    message = f"the shard map has version {current}, not {expected}: read it again, and repeat the change"
    return RequestError("SHARDS_CHANGED", message, current=current, expected=expected)


def storage_lost(folder: Path, loss: str) -> RequestError:
    """The directory of the tables is no longer this server's."""
    message = f"{loss}, so nothing more can be stored; bring it back, or restart the server"
    return RequestError("STORAGE_LOST", message, folder=folder)


def internal() -> RequestError:
    """An internal error; the log has the details."""
    return RequestError("INTERNAL", "internal error; the server's log has the traceback")


def unauthenticated(problem: str) -> RequestError:
    """The token is missing or invalid; ``problem`` never contains the token."""
    return RequestError("UNAUTHENTICATED", f"{problem}; send a valid one as 'authorization: Bearer TOKEN'")


def permission_denied(caller: str, one_of: Sequence[str], on: str, table: str = "") -> RequestError:
    """The caller, a token, lacks a right: one of these. The refusal does not reveal whether the table exists.

    ``on`` says in words what the right must apply to. ``table`` is the name of the table, if the caller named one.
    """
    right = " or ".join(one_of)
    message = f"the token {caller!r} lacks the right {right} on {on}; add it to the server's tokens file"
    return RequestError("PERMISSION_DENIED", message, right=right, table=table)
