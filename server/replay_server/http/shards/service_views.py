"""What the readers of open pages see of a service with several servers: one view for all pages with the same token."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from replay_server.http.shards.channels import Channels
from replay_server.http.shards.service_view import ServiceView
from replay_server.storage.shard_map import ShardMapFile

_KEPT_S: Final = 600.0
"""A view is kept for this long after its last page was closed, so that a page that is opened again has its history."""


class ServiceViews:
    """The views, by token."""

    def __init__(self, kept: ShardMapFile, channels: Channels) -> None:
        """Start without views.

        Args:
            kept: this server's shard map.
            channels: connections to the servers.
        """
        self._kept = kept
        self._channels = channels
        self._views: dict[bytes, ServiceView] = {}  # by the token's digest, because views outlive pages

    @contextmanager
    def page(self, token: str | None) -> Iterator[ServiceView]:
        """Count a page as open inside the block, and yield its view.

        Args:
            token: the reader's token; None: this server requires no token.
        """
        view = self._views.setdefault(_digest(token), ServiceView(self._kept, self._channels))
        view.pages += 1
        if view.pages == 1:
            view.start(token)
        try:
            yield view
        finally:
            view.pages -= 1
            if not view.pages:
                view.stop()

    def of(self, token: str | None) -> ServiceView | None:
        """Return the view of a token, if it has or recently had open pages."""
        return self._views.get(_digest(token))

    def open(self) -> list[ServiceView]:
        """Return the views with open pages."""
        return [view for view in self._views.values() if view.pages]

    def ask(self) -> None:
        """Ask all servers for the figures of all open pages, in the background. Without open pages, disconnect."""
        now = time.monotonic()
        self._views = {
            digest: view for digest, view in self._views.items() if view.pages or now - view.last_open_s < _KEPT_S
        }
        for view in self.open():
            view.ask()
        self._channels.keep({address for view in self.open() for address in view.addresses})


def _digest(token: str | None) -> bytes:
    return b"" if token is None else hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
