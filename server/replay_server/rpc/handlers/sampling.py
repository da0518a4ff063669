"""Handlers of Sample, Read and Learn."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import Message
from replay_proto.access.tokens import Right
from replay_proto.errors import FieldError
from replay_proto.framing import Carried, Framed
from replay_proto.v1 import replay_pb2

from replay_server.backends import BACKENDS
from replay_server.catalog import Catalog
from replay_server.flow.admission import Admission
from replay_server.flow.leases import Lease
from replay_server.rpc.call import Call
from replay_server.rpc.handlers import fields
from replay_server.rpc.handlers.gathering import (
    Choice,
    Gathered,
    check_reply_size,
    hold_reply,
    reply_bytes,
    reply_with_rows,
    window_rows,
)
from replay_server.rpc.handlers.updating import UpdatingHandlers
from replay_server.storage.delivery_log import ReaderStamp
from replay_server.storage.runs import ends_of, steps_of
from replay_server.table.draws import Draw, DrawMode, DrawnBatch
from replay_server.table.gates import LimiterGate
from replay_server.table.table import Table

Reply = Callable[[Table, Sequence[DrawnBatch]], Message]
"""Creates the reply to a draw, still without rows, from the drawn batches."""


class _Wanted(NamedTuple):
    """The draws that a request asks for."""

    table: str
    uid: bytes
    draw: Draw
    batches: int
    wait_s: float
    message: replay_pb2.Draw
    owner_id: bytes
    """The server whose files the client has found; empty: none."""
    is_overtaken: bool
    """Whether the client says that inserts overwrote rows of an earlier batch while it copied them."""
    is_gated: bool
    """Whether the table's gate decides when to draw, and counts the draw."""
    rows: int
    """Rows of all batches."""
    stamp: ReaderStamp | None
    """Numbers a draw from a queue, so that it can be repeated."""

    def carried(self, table: Table) -> Carried:
        """Return the columns that the reply carries."""
        return fields.carried(self.message, table.config.schema, table.config.carried)


class SamplingHandlers:
    """Handles draws and reads."""

    def __init__(self, catalog: Catalog, *, same_host: bool) -> None:
        """Serve the tables of ``catalog``. If ``same_host``, clients on this host may copy rows from the files."""
        self._catalog = catalog
        self._updating = UpdatingHandlers(catalog)
        self._same_host = same_host

    async def sample(self, request: Framed[replay_pb2.SampleRequest], call: Call) -> bytes:
        """Draw a batch."""
        wanted = _wanted(request.head.table, fields.table_uid(request.head.table_uid), request.head)
        lease = self._catalog.lease(wanted.table, wanted.uid)
        self._check_size(call, lease.table, wanted)

        def reply(table: Table, drawn: Sequence[DrawnBatch]) -> Message:
            batch = replay_pb2.Batch(**_fields(table, drawn[0], wanted))
            return replay_pb2.SampleResponse(batch=batch, table_uid=table.uid)

        return await self._drawn(call, lease, wanted, reply)

    async def read(self, request: Framed[replay_pb2.ReadRequest], call: Call) -> bytes:
        """Return rows by key."""
        message = request.head
        keys = fields.keys(message.keys)
        uid, wait_s = fields.table_uid(message.table_uid), fields.wait_s(message.wait_s)
        lease = self._catalog.lease(message.table, uid)
        config = lease.table.config
        carried = fields.carried(message, config.schema, config.stored)
        check_reply_size(carried, len(keys), self._catalog.bounds.max_rows_bytes)
        self._catalog.bounds.check_rows(len(keys))
        if wait_s and len(keys):
            await lease.admission.wait_inserted(call.caller, int(keys.max()) + 1, wait_s)
        copies = self._knows_files(uid, message.same_host.owner_id) and not message.same_host.overtaken
        await hold_reply(call, self._catalog, reply_bytes(len(keys), None if copies else carried), len(keys))
        table = lease.table

        def choose() -> Choice:
            live = table.live_keys(keys)
            links = table.directory.rows.links(live)
            head = replay_pb2.ReadResponse(
                keys=live.tobytes(),
                priorities=table.priorities(live, of_others=math.nan).tobytes(),
                streams=links[:, 0].tobytes(),
                episodes=links[:, 1].tobytes(),
                table_uid=table.uid,
            )
            if table.config.steps is not None:
                head.steps = steps_of(links).tobytes()
                head.ends = ends_of(links).tobytes()
            return head, [Gathered(live)]

        if copies:
            return choose()[0].SerializeToString()
        return await reply_with_rows(table, carried, choose, len(keys))

    async def learn(self, request: Framed[replay_pb2.LearnRequest], call: Call) -> bytes:
        """Update priorities and rows, then draw batches, on a learner's stream."""
        message = request.head
        name = call.stream.constant("table", message.table)
        uid = call.stream.constant("table_uid", fields.table_uid(message.table_uid))
        batches = fields.up_to("batches", fields.MAX_BATCHES, message.batches) or 1
        ahead = fields.up_to("ahead", fields.MAX_AHEAD, message.ahead)
        wanted = _wanted(name, uid, message, batches) if message.HasField("draw") else None
        if wanted is None and message.HasField("reader"):
            raise FieldError("reader", "none without a draw", "one")
        lease = self._catalog.lease(name, uid)
        table = lease.table
        client = call.stream.client(table, call.caller, "learner")
        replaces = wanted is not None and wanted.is_overtaken and self._replaces_batches(call, table, wanted)
        if wanted is not None:
            self._check_size(call, table, wanted)
            if wanted.is_gated and not replaces and not _is_repeat(table, wanted):
                lease.admission.check_draw(wanted.rows, wanted.wait_s, wanted.draw.least_drawable)
        is_charged = bool(message.charge or message.refund)
        if is_charged:
            _check_charge(table, message)
        response = replay_pb2.LearnResponse(table_uid=table.uid)
        if message.HasField("update"):
            fields.table_uid(uid, required=True)
            response.update.CopyFrom(await self._updating.set_priorities(call, lease, message.update))
            client.updates += response.update.updated
        if message.HasField("row_update"):
            fields.table_uid(uid, required=True)
            written = await self._updating.write_rows(call, lease, message.row_update, request.rows)
            response.row_update.CopyFrom(written)
        elif request.rows:
            raise FieldError("rows", "none without a row_update", f"{len(request.rows)} bytes")
        if is_charged:
            response.charged = _charge(lease.admission, message.charge, message.refund)
        if message.wants_state:
            response.state.CopyFrom(self._state(lease.table))
        if wanted is None:
            return response.SerializeToString()

        def reply(table: Table, drawn: Sequence[DrawnBatch]) -> Message:
            del response.batches[:]
            for batch in drawn:
                response.batches.add(**_fields(table, batch, wanted))
            return response

        try:
            answer = await self._drawn(call, lease, wanted, reply)
        except BaseException:
            if response.charged and lease.is_unchanged:  # the caller does not learn what was charged
                _charge(lease.admission, max(-response.charged, 0), max(response.charged, 0))
            raise
        if not replaces:
            table.figures.asked_ahead(batches, ahead)
            client.rows += wanted.rows
        return answer

    def _check_size(self, call: Call, table: Table, wanted: _Wanted) -> None:
        bounds = self._catalog.bounds
        rows = wanted.rows * window_rows(table)
        check_reply_size(wanted.carried(table), rows, bounds.max_rows_bytes, wanted.batches)
        bounds.check_rows(rows)
        if not wanted.is_gated:
            _check_charged_apart(call, table)
        if wanted.stamp is not None and not table.config.is_queue:
            raise FieldError("reader", f"none with the backend {table.config.backend}, only with fifo", "one")
        if wanted.draw.mode is DrawMode.WITHOUT_REPLACEMENT:
            fields.up_to("batches", fields.MAX_DISTINCT_BATCHES, wanted.batches)
            _check_distinct(table, wanted.draw)
        if wanted.draw.mode is DrawMode.NEWEST_FIRST:
            _check_newest_first(table)

    def _state(self, table: Table) -> replay_pb2.TableState:
        drawable = table.drawable
        return replay_pb2.TableState(
            total_mass=table.total_mass,
            size=table.size,
            drawable=drawable,
            inserted=table.inserted,
            smallest_probability=table.draws.smallest_probability(table.live) if drawable else 0.0,
            largest_priority=table.largest_priority,
            shards_version=self._catalog.shards.version,
            difference=table.gate.difference if isinstance(table.gate, LimiterGate) else 0.0,
            waiting_inserts=table.figures.counts.waiting_inserts,
        )

    def _may_copy(self, table: Table, wanted: _Wanted) -> bool:
        """Whether a client copies the rows: it has found the files of this server, and the table allows it."""
        return self._knows_files(wanted.uid, wanted.owner_id) and table.draws.copyable

    def _knows_files(self, uid: bytes, owner_id: bytes) -> bool:
        """Whether a client that names this table and this owner has found the files of this server."""
        return bool(uid) and owner_id == self._catalog.owner.id and self._same_host

    def _replaces_batches(self, call: Call, table: Table, wanted: _Wanted) -> bool:
        """Whether a draw replaces batches that were counted, whose rows were overwritten while the caller copied them.

        Ask this only if the caller says so, which is rare. Its word is not enough, because the rate limiter neither
        delays nor counts the draw.
        """
        return (
            table.drawable > 0
            and self._may_copy(table, wanted)
            and table.copied_batches.has(call.caller.identity, wanted.draw.batch_size, wanted.batches)
        )

    async def _admitted(self, call: Call, lease: Lease, wanted: _Wanted, *, replaces: bool) -> tuple[Admission, bool]:
        """Wait until the draws are allowed, without suspending if they already are, or replace or repeat counted ones.

        Return the table's lines, and whether the gate has counted the draws.
        """
        admission = lease.admission
        table = admission.table
        least = wanted.draw.least_drawable
        is_free = not wanted.is_gated or (table.gate is None and table.drawable >= least)
        if is_free or replaces:
            return lease.admission, False
        is_counted = await admission.draw(call.caller, wanted.rows, wanted.wait_s, least, wanted.stamp)
        return lease.admission, is_counted

    async def _drawn(self, call: Call, named: Lease, wanted: _Wanted, reply: Reply) -> bytes:
        """Draw batches when they are allowed, and build the reply; refuse if the table is dropped or reset then."""
        table, batches = named.table, (call.caller.identity, wanted.draw.batch_size, wanted.batches)
        replaces = wanted.is_overtaken and self._replaces_batches(call, table, wanted)
        if replaces:
            table.copied_batches.take(*batches)
        admission, is_counted = await self._admitted(call, named, wanted, replaces=replaces)
        lease = Lease(admission)
        copies = not wanted.is_overtaken and self._may_copy(table, wanted)
        rows = wanted.rows * window_rows(table)
        carried = None if copies else wanted.carried(table)
        try:
            await hold_reply(call, self._catalog, reply_bytes(rows, carried, wanted.batches), rows)
            async with table.draws.turn:
                answer = await self._handed_out(lease, wanted, reply, carried, replaces=replaces, is_counted=is_counted)
        except BaseException:
            if replaces and lease.is_unchanged:
                table.copied_batches.add(*batches)
            if is_counted:
                admission.leave(wanted.rows, lease.resets)
            raise
        if answer is None:
            if is_counted:
                admission.leave(wanted.rows, lease.resets)
            call.sent()  # it holds nothing while it waits again: otherwise, it could wait for its own bytes
            return await self._drawn(call, named, wanted, reply)
        if copies:
            table.copied_batches.add(*batches)
        # There may now be room for waiting inserts.
        admission.changed()
        return answer

    async def _handed_out(
        self,
        lease: Lease,
        wanted: _Wanted,
        reply: Reply,
        carried: Carried | None,
        *,
        replaces: bool,
        is_counted: bool,
    ) -> bytes | None:
        """Draw batches, build the reply, and count the batches as handed out.

        Return None if rows whose draws were granted have been evicted. If ``carried`` is None, the reply has no rows,
        because the caller copies them from the table's files. If rows are overwritten while they are gathered, the draw
        is repeated, but counts once.
        """
        table = lease.unchanged
        if carried is not None and _is_repeat(table, wanted):
            return await self._handed_out_again(lease, wanted, reply, carried, is_counted=is_counted)
        if not table.has_left(wanted.rows) or (wanted.stamp is not None and not is_counted):
            return None
        draw = _drawing(table, wanted)
        drawn: list[DrawnBatch] = []

        def choose() -> Choice:
            drawn[:] = draw()
            return reply(table, drawn), [Gathered(batch.keys, batch.windows) for batch in drawn]

        if carried is None:
            drawn[:] = draw()
            answer = reply(table, drawn).SerializeToString()
            table.figures.counts.copied_by_clients += sum([len(batch.keys) for batch in drawn])
        else:
            table.figures.counts.overtaken_copies += replaces
            answer = await reply_with_rows(table, carried, choose, wanted.rows * window_rows(table))
            table = lease.unchanged
        table.hand_out(drawn, is_counted=replaces, stamp=wanted.stamp)
        return answer

    async def _handed_out_again(
        self, lease: Lease, wanted: _Wanted, reply: Reply, carried: Carried, *, is_counted: bool
    ) -> bytes | None:
        """Build the reply to a draw that was counted as handed out before; None if its rows have been overwritten.

        They are not live, so an insert in a worker thread may overwrite them even while the event loop gathers them.
        """
        table, stamp = lease.table, wanted.stamp
        assert stamp is not None
        gathered: list[Gathered] = []

        def choose() -> Choice:
            drawn = table.draw_again(wanted.draw, stamp, wanted.rows)
            if drawn is None:
                raise _OverwrittenError
            gathered[:] = [Gathered(batch.keys, batch.windows) for batch in drawn]
            return reply(table, drawn), gathered

        try:
            answer = await reply_with_rows(table, carried, choose, wanted.rows * window_rows(table))
        except _OverwrittenError:
            return None
        if any(lease.unchanged.overtaken(batch.rows) for batch in gathered):
            return None
        if is_counted:  # another stream of the reader got the first reply, after this one was granted its rows
            lease.admission.leave(wanted.rows, lease.resets)
        return answer


class _OverwrittenError(Exception):
    """Rows that are to be delivered again have been overwritten."""


def _is_repeat(table: Table, wanted: _Wanted) -> bool:
    return wanted.stamp is not None and table.was_given(wanted.stamp, wanted.rows)


def _check_distinct(table: Table, draw: Draw) -> None:
    """Check that a table can serve a draw without replacement."""
    config, limit = table.config, table.config.rate_limit
    if config.max_times > 1 or config.most_draws > 1:
        raise FieldError("draw_mode", "another mode with max_times_sampled above 1", "WITHOUT_REPLACEMENT")
    if limit is not None and limit.samples_per_insert is not None and draw.batch_size > limit.min_size:
        # Otherwise, the draw could wait for inserts, and these for the draw.
        expected = f"at most {limit.min_size:,} without replacement, the min_size of the rate limiter"
        raise FieldError("batch_size", expected, f"{draw.batch_size:,}")


def _check_newest_first(table: Table) -> None:
    """Check that a table can serve draws of new rows."""
    config, got = table.config, "NEWEST_FIRST"
    if config.is_queue:
        raise FieldError("draw_mode", "another mode, because a queue delivers the oldest row first", got)
    if BACKENDS[config.backend].is_ranked:
        raise FieldError("draw_mode", "another mode, because rank does not know the rank of a given row", got)
    if config.most_draws:
        raise FieldError("draw_mode", "another mode with max_times_sampled", got)


def _check_charged_apart(call: Call, table: Table) -> None:
    """Check that a table can serve a draw that its gate does not count, and that the caller may charge it."""
    config, limit = table.config, table.config.rate_limit
    if config.max_times + config.most_draws:
        raise FieldError("draw", "no charged_apart in a queue or with max_times_sampled", "charged_apart")
    if limit is not None and limit.samples_per_insert is not None:
        call.caller.check(Right.WRITE, table.name)  # otherwise, readers could draw without limit


def _check_charge(table: Table, message: replay_pb2.LearnRequest) -> None:
    """Check the fields that clients send only if the table is divided among several servers."""
    for field, samples in (("charge", message.charge), ("refund", message.refund)):
        fields.at_least(field, 0, samples)
        if samples and not (isinstance(table.gate, LimiterGate) and table.gate.limit.samples_per_insert is not None):
            raise FieldError(field, "0 for a table without samples_per_insert", str(samples))


def _charge(admission: Admission, samples: int, refunded: int) -> int:
    """Charge samples to the rate limiter, serve calls that may now proceed, and return how many were charged."""
    gate = admission.table.gate
    assert isinstance(gate, LimiterGate)
    charged = gate.charge(samples) - gate.refund(refunded)
    admission.changed()
    return charged


def _wanted(
    name: str, uid: bytes, message: replay_pb2.SampleRequest | replay_pb2.LearnRequest, batches: int = 1
) -> _Wanted:
    asked, near = message.draw, message.same_host
    wait_s = fields.wait_s(asked.wait_s)
    draw = fields.draw(asked)
    is_gated = not asked.charged_apart
    rows = batches * draw.batch_size
    stamp = fields.reader(message.reader) if message.HasField("reader") else None
    return _Wanted(name, uid, draw, batches, wait_s, asked, near.owner_id, near.overtaken, is_gated, rows, stamp)


def _drawing(table: Table, wanted: _Wanted) -> Callable[[], list[DrawnBatch]]:
    """Return a function that draws the batches: the same ones at each call, unless the table has changed."""
    points = table.draws.choose_points(wanted.draw, wanted.batches)
    return lambda: table.draw_at(wanted.draw, points)


def _fields(table: Table, batch: DrawnBatch, wanted: _Wanted) -> dict[str, Any]:
    values: dict[str, Any] = {
        "keys": batch.keys.tobytes(),
        "probabilities": batch.probabilities.tobytes(),
        "weights": batch.weights.tobytes(),
        "beta": batch.beta,
        "size": batch.size,
        "total_mass": batch.total_mass,
        "smallest_probability": batch.smallest_probability,
        "inserted": batch.inserted,
        "drawable": batch.drawable,
    }
    if wanted.message.row_info:
        values["times_sampled"] = table.figures.times_sampled(batch.keys).astype(np.uint32).tobytes()
        values["ages_s"] = table.figures.ages_s(batch.keys).astype(np.float32).tobytes()
    if (windows := batch.windows) is not None:
        values |= {"window_keys": windows.keys.tobytes(), "before": windows.before.tobytes()}
        values |= {"after": windows.after.tobytes(), "ends": windows.ends.tobytes()}
    return values
