"""Error definitions shared by client and server: the error domain, and exceptions for invalid values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import ClassVar

import grpc

ERROR_DOMAIN = "replay.v1"
"""Domain of every google.rpc.ErrorInfo from the service; ErrorReason in replay.proto lists the reasons."""


class ReplayError(Exception):
    """A call was refused or failed. Base class of all errors; raised directly if there is no subclass for the error."""

    default_code: ClassVar[grpc.StatusCode] = grpc.StatusCode.UNKNOWN
    """The status code of errors raised locally, without a reply."""

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode | None = None,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Create an error.

        Args:
            message: a message for people.
            code: status code of the call; None: `default_code`.
            reason: name of an `ErrorReason` of the protocol, without its prefix; empty if there is none.
            metadata: the protocol's metadata for this reason, such as ``field`` and ``expected``.
        """
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.reason = reason
        self.metadata: dict[str, str] = dict(metadata or {})
        self.attempts = 1
        """How often the request was sent. If more than once, it may have been applied before it was refused."""

    def __reduce__(self) -> tuple[Callable[..., ReplayError], tuple[object, ...]]:
        """Pickle all fields, so that errors can cross process boundaries."""
        return partial(type(self), self.message, code=self.code, reason=self.reason, metadata=self.metadata), ()


class InvalidArgumentError(ReplayError, ValueError):
    """A value is invalid. ``metadata`` has ``field``, ``expected`` and ``got``."""

    default_code = grpc.StatusCode.INVALID_ARGUMENT

    @classmethod
    def of_field(cls, field: str, expected: str, got: str) -> InvalidArgumentError:
        """Create an error from the field, the expected value and the given one."""
        metadata = {"field": field, "expected": expected, "got": got}
        return cls(f"{field}: expected {expected}, got {got}", reason="INVALID_FIELD", metadata=metadata)


class FieldError(InvalidArgumentError):
    """A field has an invalid value, in client or server."""

    def __init__(self, field: str, expected: str, got: str) -> None:
        """Create an error; ``field`` is the name that the caller knows, such as ``"columns.obs"``."""
        error = InvalidArgumentError.of_field(field, expected, got)
        super().__init__(error.message, reason=error.reason, metadata=error.metadata)
        self.field = field
        self.expected = expected
        self.got = got

    def __reduce__(self) -> tuple[type[FieldError], tuple[str, str, str]]:
        return FieldError, (self.field, self.expected, self.got)


def without_effect(name: str, known: Sequence[str]) -> str:
    """Describe a variable that no program reads, and suggest the nearest of the ``known`` ones."""
    near = get_close_matches(name, known, n=1)
    return f"the variable {name} has no effect: there is no such setting" + (
        f"; did you mean {near[0]}?" if near else ""
    )
