"""Inserts rows exactly once, with a separate request for each call."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

import numpy as np
from numpy.typing import NDArray
from replay_proto.framing import Array
from replay_proto.v1 import replay_pb2

from replay_client._rows.checks import packed_rows
from replay_client._transport.call import Call, Operation
from replay_client._transport.request_ids import RequestId, RequestIds
from replay_client.errors import WriterUnknownError
from replay_client.results.description import TableDescription


class Inserts:
    """Inserts into one table. Thread-safe."""

    def __init__(self, table: TableDescription) -> None:
        self._table = table
        self._ids = RequestIds()

    def insert(
        self,
        columns: Mapping[str, Array],
        priorities: NDArray[np.float64] | None,
        *,
        runs: replay_pb2.Runs | None = None,
        wait_s: float,
        timeout_s: float,
        margin_s: float,
        insert_id: RequestId | None = None,
    ) -> Operation[list[NDArray[np.int64]]]:
        """Insert rows in one request.

        Args:
            columns: the result of `checked_rows`.
            priorities: float64[n], or None. In a table of steps, they are those of the anchors that the rows complete.
            runs: streams, episodes and steps of the rows. May be None in a table without steps.
            wait_s: seconds that the server waits for the rate limiter, or for room in a queue.
            timeout_s: as for `Call`.
            margin_s: as for `Call`.
            insert_id: the writer and the sequence number of this insert; None: those of an idle writer.

        Returns:
            The keys of the rows, as ranges.
        """
        with self._ids.lend() if insert_id is None else nullcontext(insert_id) as used:
            message = self._message(used, columns, priorities, runs, wait_s)
            try:
                answer = yield Call("Insert", message, timeout_s=timeout_s, margin_s=margin_s)
            except WriterUnknownError as error:
                if error.attempts > 1 or insert_id is not None:
                    raise
                # The server forgets idle writers. A refused first attempt was never applied.
                used.begin_anew()
                message = self._message(used, columns, priorities, runs, wait_s)
                answer = yield Call("Insert", message, timeout_s=timeout_s, margin_s=margin_s)
        ranges = replay_pb2.InsertResponse.FromString(bytes(answer)).keys
        return [np.arange(keys.first, keys.first + keys.count, dtype=np.int64) for keys in ranges]

    def _message(
        self,
        insert_id: RequestId,
        columns: Mapping[str, Array],
        priorities: NDArray[np.float64] | None,
        runs: replay_pb2.Runs | None,
        wait_s: float,
    ) -> bytes:
        row_count = len(next(iter(columns.values())))
        insertion = replay_pb2.Insertion(
            row_count=row_count,
            priorities=b"" if priorities is None else priorities.tobytes(),
            sequence=insert_id.sequence,
            runs=runs,
            wait_s=wait_s,
        )
        head = replay_pb2.InsertRequest(
            table=self._table.name, table_uid=self._table.uid, writer_id=insert_id.sender_id, insertion=insertion
        )
        return packed_rows(head, self._table.schema, columns, row_count)
