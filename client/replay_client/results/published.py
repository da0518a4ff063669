"""State that a program has published; see `replay_client.ReplayClient.latest`."""

from __future__ import annotations

from typing import Any, NamedTuple


class Published(NamedTuple):
    """State that a program has published."""

    version: int
    """Number of the publication; later ones have higher numbers. The first one has 1."""
    values: dict[str, Any]
    """Arrays by name, nested as they were published: ``dtype[*shape]``, writable, the caller's to keep."""
