"""Constants shared by client and server for calls that name many rows."""

from __future__ import annotations

from typing import Final

MOST_KEYS_AT_ONCE: Final = 1 << 13
"""Maximum keys that our client sends in one call. Looking them up blocks the server for about 5 ms.
"""
