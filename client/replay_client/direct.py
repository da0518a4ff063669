"""Calls to a server on another host over the TCP port that it has for frames, in plain text.

The port is the one that the table's description names, at the host that gRPC connects to. Behind an address that stands
for several servers, another one may be there: it does not know the table's uid, and refuses. After a restart the port
may be another one, so it is looked up anew where nobody answers.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Final

from replay_proto import tcp
from replay_proto.v1 import replay_pb2

from replay_client.description import TableDescription
from replay_client.errors import ReplayError
from replay_client.frame_calls import FrameCalls, NobodyThereError

_RETRY_S: Final = 30.0
"""A packet filter that drops what we send, without a word, costs us the time for a hello each time."""


class FramePort(FrameCalls):
    """The way to one table on another host."""

    def __init__(
        self,
        table: TableDescription,
        host: str,
        authorization: str,
        look_up: Callable[[], TableDescription],
    ) -> None:
        """Know where to go.

        Args:
            table: the table.
            host: where the server is.
            authorization: says who calls, where the server wants to know.
            look_up: describes the table as it is now; raises `ReplayError`.
        """
        super().__init__(
            replay_pb2.FrameHello(table=table.name, table_uid=table.uid, authorization=authorization), _RETRY_S
        )
        self._uid = table.uid
        self._host = host
        self._port = table.frame_port
        self._look_up = look_up

    def _connect(self, deadline: float) -> socket.socket:
        try:
            return self._connected(deadline)
        except ConnectionRefusedError:
            # The server is away, or was, and may have another port now. Both are over soon.
            self._find_port()
            return self._connected(deadline)

    def _find_port(self) -> None:
        """Ask for the port.

        Raises:
            NobodyThereError: there is no server to ask.
            OSError: the table, or its port, is no more.
        """
        try:
            table = self._look_up()
        except ReplayError:
            raise NobodyThereError from None
        if table.uid != self._uid or not table.frame_port:
            raise ConnectionRefusedError("the server has no port for this table any more")
        self._port = table.frame_port

    def _connected(self, deadline: float) -> socket.socket:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("there was no time left to connect")
        link = socket.create_connection((self._host, self._port), left_s)
        tcp.prepare(link, gives_up=True)
        return link
