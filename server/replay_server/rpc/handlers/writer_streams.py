"""Ensures one live stream per writer: a new stream ends the earlier one."""

from __future__ import annotations

from replay_server import errors
from replay_server.rpc.call import Stream

Place = tuple[bytes, bytes]
"""A table's uid and a writer's id."""


class WriterStreams:
    """The live stream of each writer, per table."""

    def __init__(self) -> None:
        self._streams: dict[Place, Stream] = {}
        self._places: dict[Stream, Place] = {}

    def __len__(self) -> int:
        """Number of writers with a live stream."""
        return len(self._streams)

    def claim(self, stream: Stream, table_uid: bytes, writer_id: bytes) -> None:
        """Make ``stream`` the live stream of a writer to a table.

        End the writer's earlier stream to this table, if any. If ``stream`` was the live stream of another writer or
        table before, release that claim.
        """
        place = (table_uid, writer_id)
        if self._places.get(stream) == place:
            return
        if stream not in self._places:
            stream.when_closed(lambda: self.release(stream))
        self.release(stream)
        earlier = self._streams.get(place)
        if earlier is not None:
            self.release(earlier)
            earlier.end(errors.writer_superseded())
        self._streams[place], self._places[stream] = stream, place

    def release(self, stream: Stream) -> None:
        """Release a stream's claim, if any."""
        place = self._places.pop(stream, None)
        if place is not None:
            del self._streams[place]
