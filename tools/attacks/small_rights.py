"""Attacks by callers who abuse a restricted token."""

from __future__ import annotations

import os
import secrets
import signal
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from typing import Any, Final

import grpc
import numpy as np
import psutil
from google.protobuf.message import Message
from hyperframe.frame import DataFrame
from replay_proto.access.tokens import REFRESH_S
from replay_proto.layout import MOST_ROWS_AT_ONCE
from replay_proto.schema import Column, Schema
from replay_proto.v1 import replay_pb2

from tests.support.access import ADMIN, ALL, MINE, READ, WRITE
from tests.support.caller import make_draw, make_update, table_config
from tests.support.deadlines import wait_until
from tests.support.http2 import GRPC_HEAD, Http2, RawFrames, header_block, opening
from tests.support.refusals import code_of
from tests.support.rows import rows_of
from tests.support.wire import bytes_field
from tools.attacks.arena import THEIRS, Arena
from tools.attacks.attack import Answer, Attack, Setup, Target, bearer, call, tls_context
from tools.attacks.strangers import MB, SERVICE

DENIED: Final = grpc.StatusCode.PERMISSION_DENIED
_TOO_MANY: Final = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT)
_SOON_S: Final = 5.0
_CALLERS_MB: Final = 300.0
"""Limit on the server memory that an authenticated caller may use, such as for replies in flight and waiting calls."""


class AnothersSeries(Attack):
    """Writes checkpoints of its own table into another user's series, keeping only the last one."""

    name = "checkpoints of the attacker's table in another user's series, with keep=1"
    most_mb = _CALLERS_MB

    def prepare(self, arena: Arena) -> None:
        arena.mine("copied", capacity=10)
        self.theirs = {arena.owner.checkpoint(THEIRS, series="periodic", keep=5).name for _ in range(2)}

    def act(self, target: Target) -> None:
        with target.channel() as channel:
            while target.goes_on():
                request = replay_pb2.CheckpointRequest(tables=[f"{MINE}copied"], series="periodic", keep=1)
                call(channel, f"{SERVICE}/Checkpoint", request, ALL)

    def check(self, arena: Arena) -> None:
        assert self.theirs <= {*arena.owner.checkpoints()}, "another's checkpoints were removed"


class CheckpointsOfNoTables(Attack):
    """Requests a checkpoint of all tables on a server without tables, with a write-only token."""

    name = "creating and listing checkpoints with a write-only token, on a server without tables"
    setup = Setup(has_tables=False)

    def prepare(self, arena: Arena) -> None:
        arena.owner.create(THEIRS)
        self.theirs = {arena.owner.checkpoint(THEIRS, series="periodic").name}
        arena.owner.table(THEIRS).drop()

    def act(self, target: Target) -> None:
        listing = replay_pb2.ListCheckpointsRequest()
        with target.channel() as channel:
            while target.goes_on():
                for request in (replay_pb2.CheckpointRequest(series="periodic", keep=1), listing):
                    method = type(request).__name__.removesuffix("Request")
                    if (code := call(channel, f"{SERVICE}/{method}", request, WRITE).code) is not DENIED:
                        target.found.append(f"{method}: {code}")

    def check(self, arena: Arena) -> None:
        assert self.theirs <= {*arena.owner.checkpoints()}, "another's checkpoints were removed"


class NamesInARefusal(Attack):
    """Requests a checkpoint of all tables, to learn their names from the refusal."""

    name = "a checkpoint of all tables, to learn their names from the refusal"

    def act(self, target: Target) -> None:
        with target.channel() as channel:
            while target.goes_on():
                answer = call(channel, f"{SERVICE}/Checkpoint", replay_pb2.CheckpointRequest(), ALL)
                if answer.code is not DENIED or THEIRS in repr(answer):
                    target.found.append(f"{answer}")


class Overtaken(Attack):
    """Claims that its rows were overwritten before it copied them, or that its draws are charged elsewhere.

    The rate limiter would not count such draws. The caller names the server, like one that has found its files.
    """

    name = "draws that falsely claim to replace draws of overwritten rows"
    allowed = 30

    def prepare(self, arena: Arena) -> None:
        limiter = replay_pb2.RateLimiter(min_size=10, samples_per_insert=1.0, min_diff=-20.0, max_diff=100.0)
        self.table = arena.mine("limited", rate_limiter=limiter)
        self.table.insert(np.arange(10))
        name, uid = self.table.name, self.table.uid
        again = replay_pb2.SameHost(owner_id=self.table.describe().owner_id, overtaken=True)
        self.requests = [
            replay_pb2.SampleRequest(table=name, table_uid=uid, draw=make_draw(10), same_host=again),
            replay_pb2.SampleRequest(table=name, table_uid=uid, draw=make_draw(10, charged_apart=True)),
        ]
        del self.table

    def act(self, target: Target) -> None:
        drawn = 0
        with target.channel() as channel:
            while target.goes_on():
                drawn += 10 * sum(call(channel, f"{SERVICE}/Sample", each, READ).is_ok for each in self.requests)
        if drawn > self.allowed:
            target.found.append(f"{drawn} rows drawn, {self.allowed} allowed")


class EmptyColumns(Attack):
    """Requests a table with 20 million empty columns, without the right to create tables."""

    name = "CreateTable with 20 million empty columns"
    most_mb = _CALLERS_MB

    def act(self, target: Target) -> None:
        message = bytes_field(1, b"\x12\x00" * 20_000_000)
        with target.channel() as channel:
            while target.goes_on():
                call(channel, f"{SERVICE}/CreateTable", message, READ, 30.0)


class UnreadAnswers(Attack):
    """Requests thirty batches of 100 MB, and reads no reply."""

    name = "30 Sample calls for 100 MB each, with replies that are never read"
    setup = Setup(flags=("--max-outgoing-mb", "400"))
    most_mb = _CALLERS_MB
    calls = 30

    def prepare(self, arena: Arena) -> None:
        wide = arena.mine("wide", capacity=100, schema=Schema({"x": Column("uint8", (MB,))}))
        for _ in range(20):
            request = replay_pb2.InsertRequest(
                table=wide.name, insertion=replay_pb2.Insertion(row_count=5), rows=bytes(5 * MB)
            )
            wide.stub.Insert(request)

    def act(self, target: Target) -> None:
        request = replay_pb2.SampleRequest(table=f"{MINE}wide", draw=make_draw(100)).SerializeToString()
        with Http2(target.connect_tls()) as link:
            for _ in range(self.calls):
                target.goes_on()
                link.call(f"{SERVICE}/Sample", request, bearer(READ))
            target.wait()


class ManyRows(Attack):
    """Draws the maximum number of rows per call."""

    name = "Sample calls for 4 million rows, or as many as allowed"
    most_mb = _CALLERS_MB
    rows = 1 << 22
    capacity = 1 << 20

    def prepare(self, arena: Arena) -> None:
        table = arena.mine("many", capacity=self.capacity, schema=Schema({"x": Column("int64")}))
        self.uid = table.uid
        rows = MOST_ROWS_AT_ONCE
        for _ in range(self.capacity // rows):
            request = replay_pb2.InsertRequest(
                table=table.name, insertion=replay_pb2.Insertion(row_count=rows), rows=bytes(8 * rows)
            )
            table.stub.Insert(request)

    def act(self, target: Target) -> None:
        rows = self.rows
        message = self._request(rows)
        with target.channel() as channel:
            while target.goes_on():
                answer = self._ask(channel, message)
                if answer.code in _TOO_MANY:
                    rows //= 2
                    message = self._request(rows)

    def _request(self, rows: int) -> Message:
        return replay_pb2.SampleRequest(table=f"{MINE}many", draw=make_draw(rows))

    def _ask(self, channel: grpc.Channel, request: Message) -> Answer:
        method = type(request).__name__.removesuffix("Request")
        return call(channel, f"{SERVICE}/{method}", request, ALL)

    def _keys(self, rows: int) -> Any:
        return np.random.default_rng(1).integers(0, self.capacity, rows)


class ManyRead(ManyRows):
    """Reads the maximum number of rows per call."""

    name = "Read calls for 4 million keys, or as many as allowed"

    def _request(self, rows: int) -> Message:
        return replay_pb2.ReadRequest(table=f"{MINE}many", keys=self._keys(rows).tobytes())


class ManyUpdated(ManyRows):
    """Sets the maximum number of priorities per call."""

    name = "UpdatePriorities calls with 4 million keys, or as many as allowed"

    def _request(self, rows: int) -> Message:
        keys = self._keys(rows)
        update = make_update(keys, 1.0 + keys)
        return replay_pb2.UpdatePrioritiesRequest(table=f"{MINE}many", table_uid=self.uid, update=update)


class ManyLearned(ManyRows):
    """Requests the maximum number of batches on a stream."""

    name = "Learn calls for 1,024 batches of 4,096 rows, or as many as allowed"
    batch_size = 4096

    def _request(self, rows: int) -> Message:
        batches = max(1, rows // self.batch_size)
        return replay_pb2.LearnRequest(table=f"{MINE}many", draw=make_draw(self.batch_size), batches=batches)

    def _ask(self, channel: grpc.Channel, request: Message) -> Answer:
        stream: Any = channel.stream_stream(f"{SERVICE}/Learn")
        try:
            for _ in stream(iter([request.SerializeToString()] * 3), timeout=60.0, metadata=bearer(ALL)):
                pass
        except grpc.RpcError as error:
            return Answer(code_of(error))
        return Answer(grpc.StatusCode.OK)


class WaitForEver(Attack):
    """Makes 16,384 draws that wait for rows that never arrive. Another caller's draw must still be able to wait."""

    name = "16,384 draws that wait forever"
    most_mb = _CALLERS_MB
    most = 16_384
    per_connection = 100
    theirs = "theirs-empty"

    def prepare(self, arena: Arena) -> None:
        arena.mine("empty", capacity=10)
        if self.theirs in arena.owner.table_names():
            arena.owner.table(self.theirs).reset()
        else:
            arena.owner.create(self.theirs, capacity=10)

    def act(self, target: Target) -> None:
        draw = make_draw(1, wait_s=float("inf"))
        message = replay_pb2.SampleRequest(table=f"{MINE}empty", draw=draw).SerializeToString()
        block = header_block(f"{SERVICE}/Sample", bearer(READ))
        body = GRPC_HEAD.pack(0, len(message)) + message
        numbers = range(1, 2 * self.per_connection, 2)
        calls = b"".join(
            opening(number, block).serialize() + DataFrame(number, body, flags=["END_STREAM"]).serialize()
            for number in numbers
        )
        with ExitStack() as stack:
            while target.goes_on() and target.tries * self.per_connection <= self.most:
                with suppress(OSError):
                    stack.enter_context(RawFrames(target.connect_tls())).send_bytes(calls)
            target.wait()

    def meanwhile(self, arena: Arena) -> None:
        table = arena.owner.table(self.theirs)
        waiting = table.begin_sample(1)
        try:
            wait_until(lambda: waiting.done() or table.stats().waiting > 0, "another's draw waits", _SOON_S)
            table.insert([1])
            waiting.result()
        finally:
            waiting.cancel()


class ImpossibleDraw(Attack):
    """Waits for more rows than a queue can hold. Later draws must not wait forever."""

    name = "a draw that waits forever for more rows than the queue can hold"

    def prepare(self, arena: Arena) -> None:
        arena.mine("queue", capacity=10, backend="fifo")

    def act(self, target: Target) -> None:
        request = replay_pb2.SampleRequest(table=f"{MINE}queue", draw=make_draw(1000, wait_s=float("inf")))
        with target.channel() as channel:
            while target.goes_on():
                call(channel, f"{SERVICE}/Sample", request, READ, target.left_s)

    def meanwhile(self, arena: Arena) -> None:
        table = arena.owner.table(f"{MINE}queue")
        table.insert(np.arange(10), wait_s=_SOON_S)
        table.sample(10, wait_s=_SOON_S)


class ManyDescriptors(Attack):
    """Creates tables with 512 columns (one file each) until the server runs out of descriptors."""

    name = "tables with 512 columns each"
    setup = Setup(descriptors=1200)
    most_mb = _CALLERS_MB

    def act(self, target: Target) -> None:
        schema = Schema({f"c{number}": Column("bool") for number in range(512)})
        with target.channel() as channel:
            while target.goes_on():
                config = table_config(f"{MINE}{target.tries}", capacity=1, schema=schema)
                call(channel, f"{SERVICE}/CreateTable", replay_pb2.CreateTableRequest(config=config), ADMIN)

    def check(self, arena: Arena) -> None:
        arena.owner.create("theirs-too").insert([1])
        free = 1200 - psutil.Process(arena.server.pid).num_fds()
        assert free > 500, f"{free} descriptors are left"


class DiskFullOfSeries(Attack):
    """Writes checkpoints of a table, each in a new series, until the disk is full.

    The server must start again on that disk.
    """

    name = "checkpoints in new series until the disk is full"
    setup = Setup(disk_mb=24)
    least_s = 2.0
    most_mb = _CALLERS_MB

    def prepare(self, arena: Arena) -> None:
        table = arena.mine("copied", capacity=20_000)
        table.insert(np.arange(20_000))

    def act(self, target: Target) -> None:
        with target.channel() as channel:
            while target.goes_on():
                request = replay_pb2.CheckpointRequest(tables=[f"{MINE}copied"], series=f"series{target.tries}")
                call(channel, f"{SERVICE}/Checkpoint", request, ALL)

    def check(self, arena: Arena) -> None:
        arena.bystander.rest()
        assert arena.server.terminate() == 0
        arena.server.restart()
        assert arena.owner.table(THEIRS).describe().size


class DiskFullOfTables(DiskFullOfSeries):
    """Creates tables and fills them until the disk is full. The server must start again on that disk."""

    name = "new tables until the disk is full"

    def act(self, target: Target) -> None:
        with target.channel() as channel:
            while target.goes_on():
                name = f"{MINE}{target.tries}"
                config = table_config(name, capacity=1_000_000)
                call(channel, f"{SERVICE}/CreateTable", replay_pb2.CreateTableRequest(config=config), ALL)
                insertion = replay_pb2.Insertion(row_count=MOST_ROWS_AT_ONCE)
                rows = rows_of(np.arange(MOST_ROWS_AT_ONCE))
                request = replay_pb2.InsertRequest(table=name, insertion=insertion, rows=rows)
                call(channel, f"{SERVICE}/Insert", request, ALL)


class TakenAwayWhileItWaits(Attack):
    """Waits for rows, and keeps waiting after its token is removed."""

    name = "a draw that waits while its token is removed"
    least_s = 2.0

    def prepare(self, arena: Arena) -> None:
        arena.mine("late", capacity=10)

    def act(self, target: Target) -> None:
        request = replay_pb2.SampleRequest(table=f"{MINE}late", draw=make_draw(1, wait_s=float("inf")))
        target.goes_on()
        with target.channel() as channel:
            if call(channel, f"{SERVICE}/Sample", request, READ, target.left_s + _SOON_S).is_ok:
                target.found.append("rows for a token that was taken away")

    def meanwhile(self, arena: Arena) -> None:
        arena.write_tokens(READ)
        time.sleep(1.5 * REFRESH_S)
        arena.owner.table(f"{MINE}late").insert([1])

    def check(self, arena: Arena) -> None:
        arena.write_tokens()


class TokensGone(Attack):
    """Keeps calling after the token file was emptied. This removes the bystander's token, too."""

    name = "a token used after the token file was emptied"

    def prepare(self, arena: Arena) -> None:
        arena.mine("kept", capacity=10)
        arena.bystander.rest()
        arena.bystander.take()

    def act(self, target: Target) -> None:
        with target.channel() as channel:
            while target.goes_on() or time.monotonic() < target.until + _SOON_S:
                if self._code(channel) is grpc.StatusCode.UNAUTHENTICATED:
                    return
        target.found.append("it was still valid after 5 s")

    def meanwhile(self, arena: Arena) -> None:
        arena.tokens.write_text("")

    def check(self, arena: Arena) -> None:
        arena.write_tokens()
        with arena.target().channel() as channel:
            wait_until(lambda: self._code(channel) is grpc.StatusCode.OK, "the token holds again", _SOON_S)
        arena.bystander.resume()

    def _code(self, channel: grpc.Channel) -> grpc.StatusCode:
        request = replay_pb2.DescribeTableRequest(table=f"{MINE}kept")
        return call(channel, f"{SERVICE}/DescribeTable", request, READ).code


class TokensRemoved(TokensGone):
    """Keeps calling after the token file was deleted."""

    name = "a token used after the token file was deleted"

    def meanwhile(self, arena: Arena) -> None:
        arena.tokens.unlink()


class ExpiredCertificate(Attack):
    """Connects until its certificate has expired, and then resumes a TLS session without showing a certificate."""

    name = "an expired certificate, with a TLS session resumed from before it expired"
    setup = Setup(flags=("--max-connection-s", "2"), needs_certificates=True)
    least_s = 8.0
    most_mb = _CALLERS_MB
    resumable_s = 2.0
    valid_s = 4.0

    def prepare(self, arena: Arena) -> None:
        self.expires_s = int(time.time() + self.valid_s)
        until = datetime.fromtimestamp(self.expires_s, UTC)
        self.mine = arena.authority.certify("expiring", "expiring", until=until)

    def act(self, target: Target) -> None:
        context = tls_context()
        context.load_cert_chain(self.mine.cert, self.mine.key)
        session: ssl.SSLSession | None = None
        resumed = 0
        while target.goes_on():
            expired_for_s = time.time() - self.expires_s
            if (found := self._session(target, context, session)) is not None:
                session, was_resumed = found
                resumed += was_resumed
                if expired_for_s > self.resumable_s + 1.0:
                    target.found.append(f"it was let in {expired_for_s:.1f} s after its certificate had expired")
            if expired_for_s > 1.0 and self._session(target, context, None) is not None:
                target.found.append("it was let in with a certificate that had expired")
            time.sleep(0.1)
        if not resumed:
            target.found.append("nothing was resumed: this attack shows nothing")

    def _session(
        self, target: Target, context: ssl.SSLContext, resumes: ssl.SSLSession | None
    ) -> tuple[ssl.SSLSession, bool] | None:
        """The session of a new connection, and whether it was resumed; None: the connection was refused."""
        with suppress(OSError), target.connect() as plain, context.wrap_socket(plain, session=resumes) as link:
            if link.recv(1) and link.session is not None:
                return link.session, bool(link.session_reused)
        return None


class TokensReplaced(TokensGone):
    """Keeps calling after its token was replaced in the file without changing the file's size and mtime."""

    name = "a token used after another of equal length replaced it without changing the file's mtime"

    def meanwhile(self, arena: Arena) -> None:
        before = arena.tokens.stat()
        arena.tokens.write_text(arena.tokens.read_text().replace(READ, READ[::-1]))
        os.utime(arena.tokens, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert arena.tokens.stat().st_size == before.st_size


class FullRankTable(Attack):
    """Creates and fills the largest ranked table that the server allows. Its index is larger than its rows."""

    name = "the largest ranked table that --max-bytes 40MB allows, filled"
    setup = Setup(flags=("--max-bytes", "40MB"))
    most_mb = 40.0
    least_s = 2.0

    def act(self, target: Target) -> None:
        name, schema = f"{MINE}ranked", Schema({"x": Column("bool")})
        with target.channel() as channel:
            for capacity in range(2_000_000, 0, -20_000):
                config = table_config(name, capacity=capacity, schema=schema, backend="rank")
                made = call(channel, f"{SERVICE}/CreateTable", replay_pb2.CreateTableRequest(config=config), ADMIN)
                if made.is_ok:
                    break
            rows = min(capacity // 64, MOST_ROWS_AT_ONCE)
            insertion = replay_pb2.Insertion(row_count=rows)
            insert = replay_pb2.InsertRequest(table=name, insertion=insertion, rows=bytes(rows))
            for _ in range(0, 2 * capacity, rows):
                target.goes_on()
                if not call(channel, f"{SERVICE}/Insert", insert, WRITE).is_ok:
                    target.found.append("rows were refused: this attack shows nothing")

    def check(self, arena: Arena) -> None:
        arena.owner.table(f"{MINE}ranked").drop()


class FreshWriters(Attack):
    """Inserts under a new writer's id each time."""

    name = "inserts, each by a new writer"

    def prepare(self, arena: Arena) -> None:
        arena.mine("written", capacity=1000)

    def act(self, target: Target) -> None:
        insertion = replay_pb2.Insertion(row_count=1, sequence=1)
        with target.channel() as channel:
            while target.goes_on():
                request = replay_pb2.InsertRequest(
                    table=f"{MINE}written",
                    writer_id=secrets.token_bytes(16),
                    insertion=insertion,
                    rows=rows_of(np.arange(1)),
                )
                call(channel, f"{SERVICE}/Insert", request, WRITE)


class BadNames(Attack):
    """Creates tables and checkpoints with names that traverse paths or mislead readers."""

    name = "names with /, .., NUL, newline or U+202E, and names of 129 characters"
    names = ("/../../x", "/x", "\0", "\n", "\u202e", "x" * (129 - len(MINE)))

    def prepare(self, arena: Arena) -> None:
        arena.mine("copied", capacity=10)

    def act(self, target: Target) -> None:
        with target.channel() as channel:
            while target.goes_on():
                for name in (MINE + name for name in self.names):
                    table = replay_pb2.CreateTableRequest(config=table_config(name))
                    copy = replay_pb2.CheckpointRequest(tables=[f"{MINE}copied"], series=name)
                    for method, request in (("CreateTable", table), ("Checkpoint", copy)):
                        code = call(channel, f"{SERVICE}/{method}", request, ALL).code
                        if code is not grpc.StatusCode.INVALID_ARGUMENT:
                            target.found.append(f"{method} {name!r}: {code}")


class HugeCapacity(Attack):
    """Creates a table of 2^40 rows."""

    name = "tables of 2^40 rows"

    def act(self, target: Target) -> None:
        with target.channel() as channel:
            while target.goes_on():
                config = table_config(f"{MINE}huge", capacity=1 << 40)
                call(channel, f"{SERVICE}/CreateTable", replay_pb2.CreateTableRequest(config=config), ADMIN)
                call(channel, f"{SERVICE}/DropTable", replay_pb2.DropTableRequest(table=f"{MINE}huge"), ADMIN)


class StoppedSampler(Attack):
    """Draws batches on a stream, and is stopped by SIGSTOP meanwhile."""

    name = "a sampler that is stopped by SIGSTOP"
    most_mb = _CALLERS_MB

    def prepare(self, arena: Arena) -> None:
        arena.mine("drawn", capacity=20_000).insert(np.arange(20_000))

    def act(self, target: Target) -> None:
        sampler = os.fork()
        if not sampler:
            with suppress(grpc.RpcError):
                self._sample(target)
            os._exit(0)
        time.sleep(target.left_s / 3)
        os.kill(sampler, signal.SIGSTOP)
        target.goes_on()
        target.wait()
        os.kill(sampler, signal.SIGKILL)
        os.waitpid(sampler, 0)

    def _sample(self, target: Target) -> None:
        request = replay_pb2.LearnRequest(table=f"{MINE}drawn", draw=make_draw(100), batches=100).SerializeToString()

        def ask() -> Iterator[bytes]:
            while True:
                yield request

        with target.channel() as channel:
            stream: Any = channel.stream_stream(f"{SERVICE}/Learn")
            for _ in stream(ask(), timeout=60.0, metadata=bearer(READ)):
                pass


class IdleStreams(Attack):
    """Opens 10,000 write streams without writing anything."""

    name = "10,000 idle streams"
    most_mb = _CALLERS_MB
    most = 10_000
    per_connection = 100

    def act(self, target: Target) -> None:
        block = header_block(f"{SERVICE}/Write", bearer(WRITE))
        calls = b"".join(opening(number, block).serialize() for number in range(1, 2 * self.per_connection, 2))
        with ExitStack() as stack:
            while target.goes_on() and target.tries * self.per_connection <= self.most:
                with suppress(OSError):
                    stack.enter_context(RawFrames(target.connect_tls())).send_bytes(calls)
            target.wait()


ATTACKS: Final[tuple[type[Attack], ...]] = (
    AnothersSeries,
    CheckpointsOfNoTables,
    NamesInARefusal,
    Overtaken,
    EmptyColumns,
    UnreadAnswers,
    ManyLearned,
    ManyRead,
    ManyRows,
    ManyUpdated,
    WaitForEver,
    ImpossibleDraw,
    ManyDescriptors,
    DiskFullOfSeries,
    DiskFullOfTables,
    TakenAwayWhileItWaits,
    TokensGone,
    TokensReplaced,
    TokensRemoved,
    ExpiredCertificate,
    FullRankTable,
    FreshWriters,
    BadNames,
    HugeCapacity,
    StoppedSampler,
    IdleStreams,
)
