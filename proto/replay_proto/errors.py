"""What both ends know of refusals: the error domain, and a field that is not as it should be."""

from __future__ import annotations

ERROR_DOMAIN = "replay.v1"
"""Domain of every google.rpc.ErrorInfo the service sends; reasons are those of replay.proto's ErrorReason."""


class FieldError(ValueError):
    """A value that cannot be used: which field, what was expected, what came."""

    def __init__(self, field: str, expected: str, got: str) -> None:
        """Name the field and both sides of the difference.

        Args:
            field: name of the field as the caller knows it, such as ``"batch_size"`` or ``"columns.obs"``.
            expected: what would have been accepted.
            got: what came instead.
        """
        super().__init__(f"{field}: expected {expected}, got {got}")
        self.field = field
        self.expected = expected
        self.got = got
