"""What both ends know of calls that name many rows."""

from __future__ import annotations

from typing import Final

MOST_KEYS_AT_ONCE: Final = 1 << 13
"""Most keys that our client sends in one call.

A server serves nobody else while it looks them up: for some 5 ms.
"""
