"""The backend ``fifo``: a queue, whose rows go out oldest first and are gone once they have gone out often enough.

What goes out is not drawn by priority but by age, and drawing changes the table: that is the part of
`replay_server.table.gates.QueueGate`, beside the table. What is left for an index is to keep and count priorities, as
``uniform`` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from replay_proto.errors import FieldError

from replay_server.backends.uniform import UniformIndex, UniformParameters

MAX_TIMES_SAMPLED = 10_000
"""Times a key, which has 48 bits, it is far below 64 bits."""


@dataclass(frozen=True)
class FifoParameters(UniformParameters):
    """How often a row goes out."""

    max_times_sampled: float = 1.0
    """Whole number, 1 to `MAX_TIMES_SAMPLED`."""

    def __post_init__(self) -> None:
        """Check the number.

        Raises:
            FieldError: if it cannot be used.
        """
        if not (1 <= self.max_times_sampled <= MAX_TIMES_SAMPLED and float(self.max_times_sampled).is_integer()):
            raise FieldError(
                "max_times_sampled", f"a whole number of 1 to {MAX_TIMES_SAMPLED}", repr(self.max_times_sampled)
            )


class FifoIndex(UniformIndex):
    """Keeps the priorities of a queue's rows. A `PriorityIndex`, but nothing is drawn through it."""

    name: ClassVar[str] = "fifo"
    Parameters: ClassVar[type[UniformParameters]] = FifoParameters
