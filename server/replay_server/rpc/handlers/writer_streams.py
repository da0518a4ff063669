"""Which stream is a writer's live one: of two, the later stays and the earlier ends."""

from __future__ import annotations

from replay_server import errors
from replay_server.rpc.call import Stream

Place = tuple[bytes, bytes]
"""A table's uid and a writer's id."""


class WriterStreams:
    """The live stream of each writer, per table."""

    def __init__(self) -> None:
        """Begin without streams."""
        self._streams: dict[Place, Stream] = {}
        self._places: dict[Stream, Place] = {}

    def __len__(self) -> int:
        """How many writers have a live stream."""
        return len(self._streams)

    def claim(self, stream: Stream, table_uid: bytes, writer_id: bytes) -> None:
        """Make this the writer's live stream; an earlier one ends. The stream gives up what it claimed before."""
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
        """Give up what a stream has claimed, if anything."""
        place = self._places.pop(stream, None)
        if place is not None:
            del self._streams[place]
