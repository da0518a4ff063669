"""Refusals, each with a reason from the protocol and the information needed to fix the request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from replay_proto.errors import FieldError
from replay_proto.v1 import replay_pb2

_LONGEST_TEXT = 512
"""Maximum characters of a message or metadata value: gRPC drops statuses with more than a few kilobytes."""


class RequestError(Exception):
    """A refused request, which has changed nothing."""

    def __init__(self, reason: replay_pb2.ErrorReason.ValueType, message: str, **metadata: object) -> None:
        """Create a refusal.

        Args:
            reason: from the protocol.
            message: for people: what was expected, what came, what to do.
            **metadata: for programs; the protocol lists it for each reason.
        """
        super().__init__(_shortened(message))
        self.reason = reason
        self.metadata = {name: _shortened(str(value)) for name, value in metadata.items()}


def _shortened(text: str) -> str:
    """Shorten the middle of a text that is too long."""
    half = _LONGEST_TEXT // 2
    return text if len(text) <= _LONGEST_TEXT else f"{text[:half]}...{text[-half:]}"


def invalid_field(error: FieldError) -> RequestError:
    """A field is invalid."""
    return RequestError(
        replay_pb2.ERROR_REASON_INVALID_FIELD,
        str(error),
        field=error.field,
        expected=error.expected,
        got=error.got,
    )


def table_not_found(name: str) -> RequestError:
    """The table does not exist."""
    return RequestError(
        replay_pb2.ERROR_REASON_TABLE_NOT_FOUND,
        f"there is no table {name!r}; create it first",
        table=name,
    )


def table_exists(name: str, difference: FieldError) -> RequestError:
    """The table exists with another config."""
    return RequestError(
        replay_pb2.ERROR_REASON_TABLE_EXISTS,
        f"table {name!r} exists with another config: {difference.field} is {difference.expected}, asked for "
        f"{difference.got}; drop it, or choose another name",
        table=name,
        field=difference.field,
        expected=difference.expected,
        got=difference.got,
    )


def table_replaced(name: str) -> RequestError:
    """The caller refers to an earlier table with this name."""
    return RequestError(
        replay_pb2.ERROR_REASON_TABLE_REPLACED,
        f"table {name!r} has another uid: it was dropped and created again; look it up again",
        table=name,
    )


WaitedFor = Literal["rows", "samples", "inserts", "room"]
"""What a call waits for."""


@dataclass(frozen=True)
class Lack:
    """What a waiting call lacks."""

    waited_for: WaitedFor
    have: int
    """Available amount, below ``needed``."""
    needed: int
    """Amount that lets the call proceed; see `_PROGRESS` for units."""

    @property
    def metadata(self) -> dict[str, object]:
        """Metadata of the refusal."""
        return {"waited_for": self.waited_for, "have": self.have, "needed": self.needed}

    def __str__(self) -> str:
        """For messages: "3,120 of 10,000 rows"."""
        return _PROGRESS[self.waited_for].format(have=self.have, needed=self.needed)


_PROGRESS: Mapping[WaitedFor, str] = {
    "rows": "{have:,} of {needed:,} rows",
    "samples": "{have:,} of {needed:,} samples allowed",
    "inserts": "{have:,} of {needed:,} samples drawn",
    "room": "room for {have:,} of {needed:,} rows",
}
_LACKING: Mapping[WaitedFor, str] = {
    "rows": "it has too few rows to draw",
    "samples": "its rate limiter allows no more draws until rows are inserted",
    "inserts": "its rate limiter allows no more inserts until rows are drawn",
    "room": "the queue is full until rows are drawn",
}


def table_empty(name: str, needed: int = 1) -> RequestError:
    """There are no rows to draw; ``needed`` are required."""
    return RequestError(
        replay_pb2.ERROR_REASON_TABLE_EMPTY,
        f"table {name!r} has no rows to draw: 0 of {needed:,}; insert some, or sample with a timeout",
        table=name,
        have=0,
        needed=needed,
    )


def waited_too_long(name: str, wait_s: float, lack: Lack) -> RequestError:
    """A wait exceeded its time limit."""
    return RequestError(
        replay_pb2.ERROR_REASON_WAITED_TOO_LONG,
        f"table {name!r}: waited {wait_s:g} s for {lack.waited_for}: {lack}; {_LACKING[lack.waited_for]}",
        table=name,
        **lack.metadata,
    )


def limited(name: str, lack: Lack) -> RequestError:
    """The rate limiter or queue does not allow the call now, and the caller does not wait."""
    return RequestError(
        replay_pb2.ERROR_REASON_LIMITED,
        f"table {name!r}: {_LACKING[lack.waited_for]}: {lack}; retry later, or set a timeout to wait",
        table=name,
        **lack.metadata,
    )


def table_reset(name: str) -> RequestError:
    """The table was reset while a call waited on it."""
    return RequestError(
        replay_pb2.ERROR_REASON_TABLE_RESET,
        f"table {name!r} was reset while the call waited; the call had no effect, retry it if needed",
        table=name,
    )


def too_large(bound: str, limit: int, got: int, setting: str) -> RequestError:
    """A limit was exceeded."""
    return RequestError(
        replay_pb2.ERROR_REASON_TOO_LARGE,
        f"{bound}: at most {limit} allowed ({setting}), got {got}",
        bound=bound,
        limit=limit,
        got=got,
        setting=setting,
    )


def no_space(name: str, folder: Path, what: str = "table") -> RequestError:
    """The file system of the tables or checkpoints is full."""
    return RequestError(
        replay_pb2.ERROR_REASON_NO_SPACE,
        f"no space left for {what} {name!r} in {folder}; free some, then retry",
        table=name if what == "table" else "",
    )


def sequence_gap(expected: int, got: int) -> RequestError:
    """A writer skipped a sequence number."""
    return RequestError(
        replay_pb2.ERROR_REASON_SEQUENCE_GAP,
        f"sequence: expected {expected}, got {got}; resend the unacknowledged inserts in order",
        expected=expected,
        got=got,
    )


def sequence_too_old(oldest_known: int, got: int) -> RequestError:
    """A retry came so late that its keys are forgotten."""
    return RequestError(
        replay_pb2.ERROR_REASON_SEQUENCE_TOO_OLD,
        f"sequence {got} was applied, but its keys are no longer known (oldest known: {oldest_known})",
        oldest_known=oldest_known,
        got=got,
    )


def writer_unknown(got: int) -> RequestError:
    """An unknown writer does not start at sequence 1."""
    return RequestError(
        replay_pb2.ERROR_REASON_WRITER_UNKNOWN,
        f"unknown writer: expected sequence 1, got {got}; it "
        "was idle for too long, or "
        "the table was created again; continue as a new writer",
        got=got,
    )


def writer_superseded() -> RequestError:
    """The same writer opened another stream."""
    return RequestError(
        replay_pb2.ERROR_REASON_WRITER_SUPERSEDED,
        "another stream of the same writer was opened; only one can be open",
    )


def shutting_down() -> RequestError:
    """The server is shutting down."""
    return RequestError(
        replay_pb2.ERROR_REASON_SHUTTING_DOWN,
        "the server is shutting down; retry once it is back",
    )


def checkpoints_off() -> RequestError:
    """The server has no checkpoint directory."""
    return RequestError(
        replay_pb2.ERROR_REASON_CHECKPOINTS_OFF,
        "checkpoints are off: start the server with --checkpoint-dir",
        setting="checkpoint_dir",
    )


def checkpoint_not_found(name: str) -> RequestError:
    """The checkpoint does not exist."""
    return RequestError(
        replay_pb2.ERROR_REASON_CHECKPOINT_NOT_FOUND,
        f"there is no checkpoint {name!r}; `replay checkpoint list` lists the existing ones",
        checkpoint=name,
    )


def checkpoint_damaged(name: str, file: str, fault: str) -> RequestError:
    """A checkpoint is corrupt."""
    return RequestError(
        replay_pb2.ERROR_REASON_CHECKPOINT_DAMAGED,
        f"checkpoint {name!r} is corrupt: {fault}; use another one",
        checkpoint=name,
        file=file,
    )


def internal() -> RequestError:
    """An internal error, whose details are in the log."""
    return RequestError(replay_pb2.ERROR_REASON_INTERNAL, "internal error; the server's log has the traceback")


def unauthenticated(problem: str) -> RequestError:
    """The token is missing or invalid; ``problem`` never contains the token."""
    return RequestError(
        replay_pb2.ERROR_REASON_UNAUTHENTICATED,
        f"{problem}; send a valid one as 'authorization: Bearer TOKEN'",
    )


def permission_denied(caller: str, one_of: Sequence[str], on: str, table: str = "") -> RequestError:
    """The caller lacks a right; does not reveal whether the table exists.

    Args:
        caller: name of its token.
        one_of: rights, one of which is required.
        on: description of the object.
        table: the table, if the caller named it.
    """
    rights = " or ".join(one_of)
    return RequestError(
        replay_pb2.ERROR_REASON_PERMISSION_DENIED,
        f"the token {caller!r} lacks the right {rights} on {on}; add it to the server's tokens file",
        right=rights,
        table=table,
    )
