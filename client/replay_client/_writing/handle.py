"""The base classes of all writers and of their streams, without I/O."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, Generic, NoReturn, TypeVar

from replay_client._transport.connection import ConnectionBase
from replay_client._writing.writing import Writing
from replay_client.errors import ReplayError
from replay_client.results.description import TableDescription

S = TypeVar("S")


class StreamHandle:
    """Base class of streams of experience, with their numbers."""

    def __init__(self, writing: Writing, stream: int) -> None:
        self._episodes = writing.episodes
        self._stream = stream

    @property
    def number(self) -> int:
        """uint64: random number of this stream, stored with every row."""
        return int(self._episodes.streams.numbers[self._stream])

    @property
    def episode(self) -> int:
        """Number of the current episode in the stream, stored with every row."""
        return int(self._episodes.streams.episodes[self._stream])


class WriterHandle(Generic[S]):
    """Base class of writers, with their properties and streams."""

    def __init__(
        self, connection: ConnectionBase, table: TableDescription, writing: Writing, streams: Sequence[S]
    ) -> None:
        self.steps: Final = table.steps
        """What a table of steps draws and derives; None: the table is not a table of steps."""
        self._address = connection.address
        self._table = table
        self._writing = writing
        self._outbox = writing.outbox
        self._streams = streams

    @property
    def acknowledged(self) -> int:
        """Acknowledged rows."""
        return self._outbox.acknowledged

    @property
    def in_flight(self) -> int:
        """Number of appended rows that are not yet acknowledged."""
        return self._outbox.in_flight

    def __len__(self) -> int:
        """Number of streams."""
        return len(self._streams)

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, stream: int) -> S:
        """Return one of the writer's streams, by number.

        Raises:
            IndexError: there is no such stream.
        """
        return self._streams[stream]

    def __repr__(self) -> str:
        return f"<Writer of table {self._table.name!r} at {self._address}: {self.in_flight} rows in flight>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a writer cannot be pickled or copied; send the table and create a writer there")

    def _refuse(self) -> NoReturn:
        raise TypeError(f"this writer has {len(self)} streams; use writer[i]")

    def _left(self, error: BaseException | None, failure: BaseException) -> None:
        """End a ``with`` block whose last flush failed: raise this failure, or log it if the block raised an error."""
        if error is None and isinstance(failure, ReplayError):
            raise failure
        log = logging.getLogger(type(self).__module__)  # that of the client
        log.warning("%d rows of table %r were not acknowledged", self.in_flight, self._table.name)
        if not isinstance(failure, ReplayError):
            raise failure
