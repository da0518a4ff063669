"""Ends waiting calls and open streams when their token is removed or expires.

    with caller.while_valid(end):
        await event

If the caller's token becomes invalid inside the block, `end` is called with a refusal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from replay_proto.access.tokens import REFRESH_S

from replay_server.errors import RequestError

_LOOK_S: Final = REFRESH_S / 2
End = Callable[[RequestError], None]
"""Ends a call with a refusal; may be called several times."""


class Revocations:
    """Periodically checks the tokens of waiting calls and open streams."""

    def __init__(self, check: Callable[[bytes], object]) -> None:
        """Start with no waiting calls.

        Args:
            check: raises a RequestError if the token with this digest is invalid.
        """
        self._check = check
        self._ends: dict[bytes, dict[object, End]] = {}
        self._next_look: asyncio.TimerHandle | None = None

    @contextmanager
    def ending(self, digest: bytes, end: End) -> Iterator[None]:
        """Call ``end`` if the token becomes invalid inside the block, within at most `REFRESH_S` plus one second."""
        call = object()
        self._ends.setdefault(digest, {})[call] = end
        if self._next_look is None:
            self._look_later()
        try:
            yield
        finally:
            calls = self._ends[digest]
            del calls[call]
            if not calls:
                del self._ends[digest]

    def _look_later(self) -> None:
        self._next_look = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def _look(self) -> None:
        self._next_look = None
        if not self._ends:
            return
        self._look_later()
        for digest, calls in list(self._ends.items()):
            for end in list(calls.values()):
                try:
                    self._check(digest)
                except RequestError as refusal:
                    end(refusal)
                else:
                    break
