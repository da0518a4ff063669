"""Sample, Read, UpdatePriorities, and the stream on which a learner does both."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from google.protobuf.message import Message
from replay_proto.errors import FieldError
from replay_proto.framing import Framed
from replay_proto.v1 import replay_pb2

from replay_server import errors
from replay_server.catalog import Catalog
from replay_server.draws import Draw, DrawnBatch
from replay_server.service import fields
from replay_server.service.gathering import Choice, check_reply_size, hold_reply, reply_bytes, reply_with_rows
from replay_server.service.rpc import OpenStream
from replay_server.service.transport import CAME_IN_FRAMES
from replay_server.table import Table

T = TypeVar("T", str, bytes)


class SamplingHandlers:
    """How rows go out, and priorities come back."""

    def __init__(self, catalog: Catalog, reply_limit_bytes: int, *, same_host: bool) -> None:
        """Serve these tables.

        Args:
            catalog: the tables.
            reply_limit_bytes: how long a reply may be.
            same_host: whether clients on this host may copy rows themselves.
        """
        self._catalog = catalog
        self._reply_limit_bytes = reply_limit_bytes
        self._same_host = same_host

    async def sample(self, request: Framed[replay_pb2.SampleRequest]) -> bytes:
        """Draw a batch."""
        message = request.head
        uid = fields.table_uid(message.table_uid)
        draw = fields.draw(message.draw)
        wait_s = fields.wait_s(message.draw.wait_s)
        check_reply_size(self._catalog.find(message.table, uid), draw.batch_size, self._reply_limit_bytes)
        self._catalog.bounds.check_rows(draw.batch_size)
        table = await self._admit_draw(message.table, uid, draw.batch_size, wait_s, message.same_host)

        def reply(drawn: Sequence[DrawnBatch]) -> Message:
            return replay_pb2.SampleResponse(batch=_to_proto(drawn[0]), table_uid=table.uid)

        return await self._drawn(table, draw, 1, message.same_host, reply)

    async def read(self, request: Framed[replay_pb2.ReadRequest]) -> bytes:
        """Return rows by key."""
        message = request.head
        keys = fields.keys(message.keys)
        table = self._catalog.find(message.table, fields.table_uid(message.table_uid))
        check_reply_size(table, len(keys), self._reply_limit_bytes)
        self._catalog.bounds.check_rows(len(keys))
        if await hold_reply(self._catalog.outgoing, reply_bytes(len(keys), table.config.schema.row_bytes)):
            table = self._catalog.find(table.name, table.uid)

        def choose() -> Choice:
            live = table.live_keys(keys)
            links = table.directory.rows.links(live)
            head = replay_pb2.ReadResponse(
                keys=live.tobytes(),
                priorities=table.priorities(live).tobytes(),
                streams=links[:, 0].tobytes(),
                episodes=links[:, 1].tobytes(),
                table_uid=table.uid,
            )
            return head, [live]

        return await reply_with_rows(table, choose, len(keys))

    async def update(self, request: Framed[replay_pb2.UpdatePrioritiesRequest]) -> bytes:
        """Set priorities."""
        message = request.head
        table = self._catalog.find(message.table, fields.table_uid(message.table_uid, required=True))
        result = self._update(table, message.update)
        return replay_pb2.UpdatePrioritiesResponse(result=result).SerializeToString()

    @contextmanager
    def learn_stream(
        self, _stream: OpenStream
    ) -> Iterator[Callable[[Framed[replay_pb2.LearnRequest]], Awaitable[bytes]]]:
        """A learner's stream: each message may set priorities and draw batches."""
        name, uid = "", b""

        async def learn(request: Framed[replay_pb2.LearnRequest]) -> bytes:
            nonlocal name, uid
            message = request.head
            name = _constant("table", name, message.table)
            uid = _constant("table_uid", uid, fields.table_uid(message.table_uid))
            return await self._learn(name, uid, message)

        yield learn

    async def _learn(self, name: str, uid: bytes, message: replay_pb2.LearnRequest) -> bytes:
        draw = fields.draw(message.draw) if message.HasField("draw") else None
        batches = fields.batch_count(message.batches)
        wait_s, ahead = fields.wait_s(message.draw.wait_s), fields.ahead(message.ahead)
        table = self._catalog.find(name, uid)
        if draw is not None:
            check_reply_size(table, batches * draw.batch_size, self._reply_limit_bytes, batches)
            self._catalog.bounds.check_rows(batches * draw.batch_size)
            if not self._replaces_batch(table, message.same_host):
                self._catalog.waiters.check_draw(table, batches * draw.batch_size, wait_s)
        response = replay_pb2.LearnResponse(table_uid=table.uid)
        if message.HasField("update"):
            fields.table_uid(uid, required=True)
            response.update.CopyFrom(self._update(table, message.update))
        if draw is None:
            return response.SerializeToString()
        table = await self._admit_draw(name, uid, batches * draw.batch_size, wait_s, message.same_host)

        def reply(drawn: Sequence[DrawnBatch]) -> Message:
            del response.batches[:]
            response.batches.extend(map(_to_proto, drawn))
            return response

        answer = await self._drawn(table, draw, batches, message.same_host, reply)
        table.batches_drawn += batches
        # Each batch of the message comes after the ones before it.
        table.batches_ahead += batches * ahead + batches * (batches - 1) // 2
        return answer

    def _update(self, table: Table, update: replay_pb2.PriorityUpdate) -> replay_pb2.UpdateResult:
        keys = fields.keys(update.keys)
        self._catalog.bounds.check_rows(len(keys))
        priorities = fields.priorities(update.priorities, len(keys), table.priority_limit)
        updated, stale = table.update(keys, priorities)
        return replay_pb2.UpdateResult(updated=updated, stale=stale)

    def _may_copy(self, table: Table, same_host: replay_pb2.SameHost) -> bool:
        """Whether a client has shown that it can read the table's directory."""
        return self._same_host and not table.is_queue and hmac.compare_digest(same_host.nonce, table.directory.nonce)

    def _replaces_batch(self, table: Table, same_host: replay_pb2.SameHost) -> bool:
        """Whether a draw replaces a batch that the caller could not copy: it was admitted, and counted, with that."""
        return same_host.overtaken and table.size > 0 and self._may_copy(table, same_host)

    async def _admit_draw(
        self, name: str, uid: bytes, rows: int, wait_s: float, same_host: replay_pb2.SameHost
    ) -> Table:
        """The table, once so many rows may be drawn from it; without ``wait_s``, if they may be."""
        table = self._catalog.find(name, uid)
        if (table.gate is not None or not table.size) and not self._replaces_batch(table, same_host):
            await self._catalog.waiters.draw(table, rows, wait_s)
            table = self._catalog.find(name, uid or table.uid)
        return table

    async def _drawn(
        self,
        table: Table,
        draw: Draw,
        batches: int,
        same_host: replay_pb2.SameHost,
        reply: Callable[[Sequence[DrawnBatch]], Message],
    ) -> bytes:
        """Draw batches that were admitted and build their reply; what counts is what is handed out.

        Args:
            table: to draw from.
            draw: what the caller asks for.
            batches: how many times.
            same_host: whether the caller copies the rows itself.
            reply: makes the reply, without its rows, out of the batches.
        """
        await self._hold_batches(table, batches * draw.batch_size, batches, same_host)
        points = table.choose_points(draw, batches)
        drawn: list[DrawnBatch] = []

        def choose() -> Choice:
            drawn[:] = table.draw_at(draw, points)
            return reply(drawn), [batch.keys for batch in drawn]

        if self._replaces_batch(table, same_host):
            table.overtaken_copies += 1
        if self._may_copy(table, same_host) and not same_host.overtaken:
            answer = choose()[0].SerializeToString()
            table.rows_copied_by_clients += len(points)
        else:
            answer = await reply_with_rows(table, choose, len(points))
            if CAME_IN_FRAMES.get():
                table.rows_sent_in_frames += len(points)
        table.count_drawn(drawn)
        if table.is_queue:
            # There is room now.
            self._catalog.waiters.changed(table)
        return answer

    async def _hold_batches(self, table: Table, rows: int, batches: int, same_host: replay_pb2.SameHost) -> None:
        """Wait until batches that were admitted may be sent; the table is as it was then, or the caller is refused."""
        copies = self._may_copy(table, same_host) and not same_host.overtaken
        size, resets = reply_bytes(rows, 0 if copies else table.config.schema.row_bytes, batches), table.resets
        try:
            if await hold_reply(self._catalog.outgoing, size):
                self._catalog.find(table.name, table.uid)
                if table.resets != resets:
                    raise errors.table_reset(table.name)
        except BaseException:
            self._catalog.waiters.leave(table, rows, resets)
            raise


def _constant(field: str, first: T, now: T) -> T:
    """What a stream's first message says, unless a later one contradicts it."""
    if first and now and first != now:
        raise FieldError(field, f"what the stream said before ({first!r}), or nothing", repr(now))
    return first or now


def _to_proto(batch: DrawnBatch) -> replay_pb2.Batch:
    return replay_pb2.Batch(
        keys=batch.keys.tobytes(),
        probabilities=batch.probabilities.tobytes(),
        weights=batch.weights.tobytes(),
        beta=batch.beta,
        size=batch.size,
        total_mass=batch.total_mass,
        smallest_probability=batch.smallest_probability,
        inserted=batch.inserted,
    )
