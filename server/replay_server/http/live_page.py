"""The live page: its files, the stream of figures that it shows, and the history of its tables."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from replay_proto.access.tokens import Right
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from replay_server.http.event_stream import LONGEST_S, EventStream
from replay_server.http.feed import MOST_PAGES, Feed
from replay_server.http.page_figures import to_json
from replay_server.http.readers import Readers

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
