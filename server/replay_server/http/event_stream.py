"""Sends the frames of a feed to an open page, as server-sent events."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from replay_server.auth.caller import Caller
from replay_server.errors import RequestError
from replay_server.http.feed import Feed
from replay_server.http.serving import Connection, connection_of

LONGEST_S: Final = 600.0
"""Maximum duration of a stream. Afterwards, the page reconnects, and its browser presents its certificate again."""
SLOW_S: Final = 10.0
"""A page is disconnected if its send buffer stays full for this long."""
_START: Final = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}


class EventStream(Response):
    """Sends each new frame, without queueing. Slow pages miss frames; pages that stop reading are disconnected."""

    def __init__(self, feed: Feed, caller: Caller, longest_s: float = LONGEST_S) -> None:
        """Stream what the caller may see, for up to ``longest_s`` seconds.

        Args:
            feed: makes the frames.
            caller: the reader.
            longest_s: maximum duration in seconds.
        """
        self._feed = feed
        self._caller = caller
        self._longest_s = longest_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        connection = connection_of(scope)
        connection.keep_open()
        try:
            with self._feed.one_more():
                await send(_START)
                with suppress(RequestError):  # the token is no longer valid
                    await self._send_frames(connection, send)
                await _send_body(send, b"", more=False)
        except TimeoutError:
            connection.abort()
            await connection.lost

    async def _send_frames(self, connection: Connection, send: Send) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._longest_s
        while not connection.lost.done() and loop.time() < deadline:
            frame = self._feed.next_frame
            await asyncio.wait((frame, connection.lost), return_when=asyncio.FIRST_COMPLETED)
            if frame.done():
                event = frame.result().event_for(self._caller)
                await _send_body(send, event, more=True)


async def _send_body(send: Send, body: bytes, *, more: bool) -> None:
    async with asyncio.timeout(SLOW_S):
        await send({"type": "http.response.body", "body": body, "more_body": more})
