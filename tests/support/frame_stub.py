"""A stub for callers on the server's host, using its unix-domain socket.

Sample, UpdatePriorities and Learn use the socket. Everything else uses gRPC, including calls for a missing table. Rows
are copied from the table's files, and added to the replies as if they had been sent.
"""

from __future__ import annotations

import itertools
import os
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np
from google.protobuf.message import Message
from google.rpc import status_pb2
from numpy.typing import NDArray
from replay_proto.schema import Schema
from replay_proto.v1 import replay_pb2, replay_pb2_grpc

HEAD: Final = struct.Struct("<II")
MESSAGE, STATUS = 0, 1
_PATIENCE_S: Final = 60.0
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


class FrameRpcError(grpc.RpcError):
    """A failed call, with the interface of gRPC's errors."""

    def __init__(self, code: grpc.StatusCode, details: str, status: bytes = b"") -> None:
        super().__init__(f"{code}: {details}")
        self._code, self._details, self._status = code, details, status

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Any:
        return (("grpc-status-details-bin", self._status),) if self._status else ()


class FrameLink:
    """A connection to a server's socket, frame by frame."""

    def __init__(self, path: str) -> None:
        """Connect."""
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(_PATIENCE_S)
        folder = os.open(Path(path).parent, os.O_PATH)
        try:
            self.socket.connect(f"/proc/self/fd/{folder}/{Path(path).name}")
        except OSError:
            self.socket.close()
            raise
        finally:
            os.close(folder)

    def send(self, content: bytes, kind: int = MESSAGE) -> None:
        """Send a frame."""
        self.socket.sendall(HEAD.pack(len(content), kind) + content)

    def receive(self) -> tuple[int, bytes]:
        """The next frame: its kind and its content.

        Raises:
            EOFError: the server closed the connection.
        """
        size, kind = HEAD.unpack(self._exactly(HEAD.size))
        return kind, self._exactly(size)

    def answer(self) -> bytes:
        """The next message.

        Raises:
            FrameRpcError: a refusal; UNAVAILABLE if the connection has ended.
        """
        try:
            kind, content = self.receive()
        except (OSError, EOFError) as error:
            raise FrameRpcError(grpc.StatusCode.UNAVAILABLE, f"the connection has ended: {error}") from None
        if kind == MESSAGE:
            return content
        status = status_pb2.Status.FromString(content)
        raise FrameRpcError(_CODES[status.code], status.message, content)

    def cut(self) -> None:
        """Shut the connection down, even while a thread waits."""
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it has ended

    def close(self) -> None:
        """Shut the connection down and close it."""
        self.cut()
        self.socket.close()

    def _exactly(self, size: int) -> bytes:
        content = bytearray()
        while len(content) < size:
            part = self.socket.recv(min(1 << 20, size - len(content)))
            if not part:
                raise EOFError("the server ended it")
            content += part
        return bytes(content)


def hello_for(description: replay_pb2.TableDescription, method: str, /, **changes: Any) -> replay_pb2.FrameHello:
    """The hello of a client, with fields changed."""
    names = {"method": method, "table": description.config.name, "table_uid": description.uid}
    fields = {**names, "owner_id": description.owner_id, **changes}
    return replay_pb2.FrameHello(**fields)


def greeted(table: replay_pb2.TableDescription, method: str) -> FrameLink:
    """A connection whose hello was accepted.

    Raises:
        FrameRpcError: it was not.
    """
    link = FrameLink(table.socket)
    try:
        link.send(hello_for(table, method).SerializeToString())
        assert replay_pb2.FrameWelcome.FromString(link.answer()).owner_id == table.owner_id
    except BaseException:
        link.close()
        raise
    return link


class TableFiles:
    """A table's column and header files on the server's host."""

    def __init__(self, table: replay_pb2.TableDescription) -> None:
        """Map the files."""
        folder = Path(table.directory)
        self.table = table
        self._slots = table.slots
        self._header = np.memmap(folder / "header.bin", "<i8", "r")
        self._columns = [
            np.memmap(folder / f"column-{index:03d}.bin", np.uint8, "r", shape=(table.slots, column.row_bytes))
            for index, column in enumerate(Schema.from_proto(table.config.columns).values())
        ]

    def rows(self, keys: bytes) -> bytes | None:
        """The serialized rows of keys, int64[n]; None if they were overwritten."""
        wanted: NDArray[np.int64] = np.frombuffer(keys, "<i8")
        rows = b"".join(column[wanted % self._slots].tobytes() for column in self._columns)
        return rows if wanted.min() + self._slots >= self._header[0] else None


class FrameStub:
    """Replaces a ReplayServiceStub."""

    def __init__(self, wire: replay_pb2_grpc.ReplayServiceStub) -> None:
        """Use this channel for everything except the socket's methods."""
        self.wire = wire
        self._calls: list[_LearnCall] = []
        self.Sample = _Unary(self, "Sample", replay_pb2.SampleResponse)
        self.UpdatePriorities = _Unary(self, "UpdatePriorities", replay_pb2.UpdatePrioritiesResponse)

    def __getattr__(self, name: str) -> Any:
        """Everything else goes over gRPC."""
        return getattr(self.wire, name)

    def Learn(self, requests: Iterator[replay_pb2.LearnRequest], timeout: float | None = None) -> _LearnCall:  # noqa: N802
        """Open a learner's stream."""
        self._calls.append(_LearnCall(self, requests, timeout))
        return self._calls[-1]

    def close(self) -> None:
        """End all connections."""
        for call in self._calls:
            call.cancel()
        for unary in (self.Sample, self.UpdatePriorities):
            unary.close()

    def described(self, name: str) -> replay_pb2.TableDescription | None:
        """The table, if it exists and offers a socket."""
        try:
            table = self.wire.DescribeTable(replay_pb2.DescribeTableRequest(table=name), timeout=_PATIENCE_S).table
        except grpc.RpcError:
            return None
        return table if table.socket else None


class _Unary:
    """Calls of one method, sequential on each connection."""

    def __init__(self, stub: FrameStub, method: str, response: type[Message]) -> None:
        self._stub = stub
        self._method = method
        self._response = response
        self._idle: list[FrameLink] = []
        self._over_grpc = getattr(stub.wire, method)

    def __call__(self, request: Any, timeout: float | None = None) -> Any:
        table = self._stub.described(request.table)
        if table is None:
            return self._over_grpc(request, timeout=timeout)
        link = self._idle.pop() if self._idle else greeted(table, self._method)
        try:
            answer = self._call(link, table, request)
        except FrameRpcError as error:
            self._idle.append(link) if error.trailing_metadata() else link.close()
            raise
        self._idle.append(link)
        return answer

    def future(self, request: Any) -> _Future:
        """The call in the background."""
        table = self._stub.described(request.table)
        assert table is not None
        link = greeted(table, self._method)
        return _Future(link, lambda: self._call(link, table, request))

    def close(self) -> None:
        for link in self._idle:
            link.close()
        self._idle.clear()

    def _call(self, link: FrameLink, table: replay_pb2.TableDescription, request: Any) -> Any:
        if self._method != "Sample":
            return self._ask(link, request)
        files = TableFiles(table)
        answer = self._ask(link, from_near(request, files))
        if not answer.rows:
            rows = files.rows(answer.batch.keys)
            if rows is None:
                return self._ask(link, overtaken(request, files))
            answer.rows = rows
        return answer

    def _ask(self, link: FrameLink, request: Message) -> Any:
        with suppress(OSError):  # it has ended, and the answer says why
            link.send(request.SerializeToString())
        return self._response.FromString(link.answer())


class _Future:
    """A call in the background."""

    def __init__(self, link: FrameLink, call: Any) -> None:
        self._link = link
        self._outcome: Any = None

        def run() -> None:
            try:
                self._outcome = call()
            except FrameRpcError as error:
                self._outcome = error
            finally:
                link.close()

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def result(self) -> Any:
        self._thread.join()
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    def cancel(self) -> None:
        self._link.cut()
        self._thread.join()


class _LearnCall:
    """A learner's stream; a separate thread sends the requests."""

    def __init__(self, stub: FrameStub, requests: Iterator[replay_pb2.LearnRequest], timeout: float | None) -> None:
        self._stub = stub
        self._timeout = timeout
        self._link: FrameLink | None = None
        self._files: TableFiles | None = None
        self._over_grpc: Any = None
        self._sent: deque[replay_pb2.LearnRequest] = deque()
        self._changed = threading.Condition()
        self._is_complete = self._is_cancelled = False
        self._failure: FrameRpcError | None = None
        self._thread = threading.Thread(target=self._send_all, args=(requests,), daemon=True)
        self._thread.start()

    def __iter__(self) -> _LearnCall:
        return self

    def __next__(self) -> replay_pb2.LearnResponse:
        self._wait_for_something()
        if self._over_grpc is not None:
            answer: replay_pb2.LearnResponse = next(self._over_grpc)
            return answer
        if self._failure is not None:
            raise self._failure
        if not self._sent and self._is_complete:
            self.cancel()
            raise StopIteration
        return self._answer()

    def code(self) -> grpc.StatusCode:
        """Status code of the stream."""
        return grpc.StatusCode.OK if self._failure is None else self._failure.code()

    def cancel(self) -> None:
        """Disconnect abruptly, once there is a connection."""
        with self._changed:
            self._is_cancelled = True
            self._leave()

    def _leave(self) -> None:
        if self._over_grpc is not None:
            self._over_grpc.cancel()
        if self._link is not None:
            self._link.cut()

    def _wait_for_something(self) -> None:
        """Wait until a request is in flight, no more will follow, or the server sends data unprompted."""
        with self._changed:
            while not (self._over_grpc or self._sent or self._is_complete or self._failure):
                if self._link is not None and select.select([self._link.socket], [], [], 0)[0]:
                    return
                self._changed.wait(0.01)

    def _answer(self) -> replay_pb2.LearnResponse:
        assert self._link is not None
        try:
            answer = replay_pb2.LearnResponse.FromString(self._link.answer())
        except FrameRpcError as error:
            self._failure = FrameRpcError(grpc.StatusCode.CANCELLED, "by us") if self._is_cancelled else error
            self._link.close()
            raise self._failure from None
        request = self._sent.popleft()
        if self._files is not None and not answer.rows:
            self._add_rows(self._files, request, answer)
        return answer

    def _add_rows(self, files: TableFiles, request: replay_pb2.LearnRequest, answer: replay_pb2.LearnResponse) -> None:
        rows = []
        for batch in answer.batches:
            copied = files.rows(batch.keys)
            if copied is None:
                once_more = replay_pb2.SampleRequest(table=self._name, draw=request.draw)
                again = self._stub.wire.Sample(overtaken(once_more, files))
                batch.CopyFrom(again.batch)
                copied = again.rows
            rows.append(copied)
        answer.rows = b"".join(rows)

    def _send_all(self, requests: Iterator[replay_pb2.LearnRequest]) -> None:
        try:
            for request in requests:
                if not self._is_open(request, requests):
                    return
                assert self._link is not None
                with self._changed:
                    self._sent.append(request)
                    self._changed.notify()
                assert self._files is not None
                self._link.send(from_near(request, self._files).SerializeToString())
        except FrameRpcError as error:
            self._failure = error
        except OSError:
            pass  # it has ended, and the answer says why
        finally:
            with self._changed:
                self._is_complete = True
                self._changed.notify()

    def _is_open(self, first: replay_pb2.LearnRequest, others: Iterator[replay_pb2.LearnRequest]) -> bool:
        """Connect if necessary; False if gRPC is used instead."""
        if self._link is not None:
            return True
        table = self._stub.described(first.table)
        over_grpc, link = None, None
        if table is None:
            over_grpc = self._stub.wire.Learn(itertools.chain([first], others), timeout=self._timeout)
        else:
            self._name, self._files = table.config.name, TableFiles(table)
            link = greeted(table, "Learn")
        with self._changed:
            self._over_grpc, self._link = over_grpc, link
            if self._is_cancelled:  # while it was being opened
                self._leave()
        return link is not None


def from_near(request: Any, files: TableFiles) -> Any:
    """The same request from a client that copies rows itself."""
    copy = type(request)()
    copy.CopyFrom(request)
    if copy.HasField("draw"):
        copy.table_uid = copy.table_uid or files.table.uid
        copy.same_host.owner_id = files.table.owner_id
    return copy


def overtaken(request: Any, files: TableFiles) -> Any:
    """The same request from a client whose rows were overwritten before it copied them."""
    copy = from_near(request, files)
    copy.same_host.overtaken = True
    return copy
