"""By which way a request came, for whoever counts that."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

CAME_IN_FRAMES: Final = ContextVar("came_in_frames", default=False)
"""Whether the task at work serves a connection without gRPC."""
