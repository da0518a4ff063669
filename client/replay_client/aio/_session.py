"""State shared by a client and its tables; see `replay_client._transport.session`.

A pickled or copied session belongs to the event loop that uses it first; its connection checks that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from replay_client._transport.call import Operation
from replay_client._transport.data_path import RENEW_S
from replay_client._transport.session import Session, SessionBase
from replay_client.aio._connection import Connection
from replay_client.aio._frames import LocalPath
from replay_client.errors import ClosedError
from replay_client.results.description import TableDescription
from replay_client.sync.client import ReplayClient as SyncClient

T = TypeVar("T")


class LoopSession(SessionBase):
    """See the module."""

    _connection: Connection | None = None
    _is_closed = False

    @property
    def connection(self) -> Connection:
        """The connection; opened on first use."""
        if self._connection is None:
            if self._is_closed:
                raise ClosedError("this client is closed")
            self.check_token()
            self._connection = Connection(self.options, self._token)
        return self._connection

    async def close(self) -> None:
        """Close the connection, if it was opened. Later calls raise `ClosedError`."""
        self._is_closed = True
        if self._connection is not None:
            await self._connection.close()

    def local_path(self, table: TableDescription, describe: Callable[[], Operation[TableDescription]]) -> LocalPath:
        """Prepare the shortcuts to a table, without a call to the server. ``describe`` fetches its description."""

        async def described() -> TableDescription:
            return await self.connection.ask(describe(), timeout_s=RENEW_S)

        authorization = self.connection.access.authorization
        return LocalPath(table, authorization, describe=described if self.options.same_host else None)

    def blocking(self) -> Session:
        """Return a session for threads, with a connection of its own."""
        return Session(self.options, self._token)

    def blocking_client(self) -> SyncClient:
        """Return a client for threads, with a connection of its own."""
        return SyncClient(token=self._token, **vars(self.options))

    async def in_thread(self, opened: Session | SyncClient, work: Callable[[], T]) -> T:
        """Run blocking work in a thread, and then close ``opened``, the session or client made for it.

        If the task is canceled, ``opened`` is closed immediately, so the thread's next call to the server fails.
        """
        try:
            await self.connection.reach()
            return await asyncio.to_thread(work)
        finally:
            opened.close()
