"""The routes of the HTTP port.

If the server has tokens, /metrics and the live page require one. Like Stats, they show only the tables that the token
gives the right to read. The probes and the files under /page require no token.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from replay_proto.v1 import replay_pb2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from replay_server.errors import RequestError
from replay_server.http.live_page import LivePage
from replay_server.http.metrics import render
from replay_server.http.serving import CHALLENGES, Readers
from replay_server.http.view import View

_REST: Final = 4
"""Pause after each scrape, as a multiple of the scrape's CPU time. So scrapes use at most a fifth of a core."""
_STATUSES: Final = {
    replay_pb2.ERROR_REASON_UNAUTHENTICATED: 401,
    replay_pb2.ERROR_REASON_PERMISSION_DENIED: 403,
    replay_pb2.ERROR_REASON_TABLE_NOT_FOUND: 404,
}


class Routes:
    """Answers requests."""

    def __init__(self, view: View, readers: Readers, page: LivePage) -> None:
        self._view = view
        self._readers = readers
        self._page = page
        self._turn = asyncio.Lock()

    def app(self) -> Starlette:
        """The application with all routes."""
        return Starlette(
            routes=[
                Route("/metrics", self._metrics),
                Route("/healthz", self._healthz),
                Route("/readyz", self._readyz),
                *self._page.routes(),
            ],
            exception_handlers={RequestError: _refuse},
        )

    async def _healthz(self, _request: Request) -> Response:
        """Answer as long as the event loop runs."""
        return PlainTextResponse("alive\n")

    async def _readyz(self, _request: Request) -> Response:
        """Return the server's state, with status 200 while it serves calls, otherwise 503.

        It serves calls once the kernels are loaded and the tables are open, as long as it has the directory of the
        tables. Further lines say what has become of the directory, and name loops in the background that keep failing.
        """
        lines: list[str] = [self._view.state]
        loss = self._view.catalog.owner.loss
        if loss is not None:
            lines.append(f"{loss}; bring it back, or restart the server")
        for name, loop in self._view.background.loops.items():
            if loop.keeps_failing:
                lines.append(f"{name} keeps failing, {loop.in_a_row} times in a row; see the log")
        return PlainTextResponse("\n".join(lines) + "\n", 200 if self._view.state == "ready" and loss is None else 503)

    async def _metrics(self, request: Request) -> Response:
        caller = self._readers.identify(request)
        await self._turn.acquire()
        began = time.thread_time()
        try:
            if await request.is_disconnected():
                return Response()
            body = await render(await self._view.of_server(caller))
        finally:
            rest_s = _REST * (time.thread_time() - began)
            asyncio.get_running_loop().call_later(rest_s, self._turn.release)
        return Response(body, media_type=CONTENT_TYPE_PLAIN_0_0_4)


async def _refuse(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    status = _STATUSES.get(error.reason, 500)
    response = PlainTextResponse(f"{error}\n", status)
    for challenge in CHALLENGES if status == 401 else ():
        response.headers.append("www-authenticate", challenge)
    return response
