"""The live page: its files, the stream of figures that it shows, and the history of its tables."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Final

from replay_proto.access.tokens import Right
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from replay_server.auth import Caller
from replay_server.errors import RequestError
from replay_server.http.feed import MOST_PAGES, Feed
from replay_server.http.page_figures import to_json
from replay_server.http.serving import Connection, Readers, connection_of

LONGEST_S: Final = 600.0
"""Maximum duration of a stream. Afterwards, the page reconnects, and its browser presents its certificate again."""
SLOW_S: Final = 10.0
"""A page is disconnected if its send buffer stays full for this long."""
_START: Final = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}


class EventStream(Response):
    """Sends each new frame, without queueing. Slow pages miss frames; pages that stop reading are disconnected."""

    def __init__(self, feed: Feed, caller: Caller, longest_s: float = LONGEST_S) -> None:
        """Stream what the caller may see, for up to ``longest_s`` seconds."""
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


_FOLDER: Final = Path(__file__).parent / "page"
_TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
}


class LivePage:
    """Answers the requests of the page."""

    def __init__(self, feed: Feed, readers: Readers, longest_s: float = LONGEST_S) -> None:
        """Show a feed; each stream of events lasts up to ``longest_s`` seconds."""
        self._feed = feed
        self._readers = readers
        self._longest_s = longest_s
        self._files = {
            path.relative_to(_FOLDER).as_posix(): path.read_bytes()
            for path in _FOLDER.rglob("*")
            if path.suffix in _TYPES
        }

    def routes(self) -> list[Route]:
        """All routes of the page."""
        return [
            Route("/", self._page),
            Route("/page/{name:path}", self._file),
            Route("/events", self._events),
            Route("/history", self._history),
        ]

    async def _page(self, request: Request) -> Response:
        """Return the page. It requires a token, so browsers ask for one, and send it with all later requests."""
        self._readers.identify(request).check(Right.READ)
        return self._file_named("index.html")

    async def _file(self, request: Request) -> Response:
        return self._file_named(request.path_params["name"])

    def _file_named(self, name: str) -> Response:
        content = self._files.get(name)
        if content is None:
            raise HTTPException(404)
        return Response(content, headers=_HEADERS, media_type=_TYPES[Path(name).suffix])

    async def _events(self, request: Request) -> Response:
        caller = self._readers.identify(request)
        caller.check(Right.READ)
        if self._feed.pages >= MOST_PAGES:
            raise HTTPException(503, f"expected at most {MOST_PAGES} open pages; close some, or try again later")
        return EventStream(self._feed, caller, self._longest_s)

    async def _history(self, request: Request) -> Response:
        name = request.query_params.get("table", "")
        self._readers.identify(request).check(Right.READ, name)
        points = self._feed.history_of(name)
        return Response(to_json(points), headers=_HEADERS, media_type="application/json")
