"""Counts and limits open streams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from replay_server import errors
from replay_server.flow.bounds import Bounds
from replay_server.flow.budgets import Budget


class OpenStreams:
    """Counts and limits open streams per connection, per caller and in total."""

    def __init__(self, bounds: Bounds) -> None:
        self._most = bounds.max_streams_per_connection
        self._open: Counter[str] = Counter()
        self._of_callers = Budget("streams", "max_streams of the server", bounds.max_streams, bounds.caller_share)

    @contextmanager
    def one_more(self, connection: str, caller: str) -> Iterator[None]:
        """Count a stream as open inside the block.

        Raises:
            RequestError: TOO_LARGE if a limit is reached.
        """
        if self._open[connection] >= self._most:
            setting = "max_streams_per_connection of the server"
            raise errors.too_large("streams of one connection", self._most, self._open[connection] + 1, setting)
        self._open[connection] += 1
        try:
            with self._of_callers.held(caller):
                yield
        finally:
            self._open[connection] -= 1
            if not self._open[connection]:
                del self._open[connection]
