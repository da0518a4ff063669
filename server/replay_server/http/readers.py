"""Identifies readers of the HTTP port by a token, which they send as a bearer token (as with gRPC) or as a password.

Browsers prompt for a user name and a password if the server requests them (RFC 7617). Tokens in URLs are not accepted,
because URLs end up in histories and logs.
"""

from __future__ import annotations

import base64
import binascii
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request

from replay_server.auth.caller import Authenticator, Caller

CHALLENGES: Final = ("Bearer", 'Basic realm="replay-server: any name, and a token as the password", charset="UTF-8"')
"""Challenges for a reader without a valid token. Each gets its own header: browsers understand only one per header."""
_BASIC: Final = "basic "


class Readers:
    """Identifies readers."""

    def __init__(self, authenticator: Authenticator, *, on_this_host: bool = False) -> None:
        """Accept the same tokens as gRPC.

        Args:
            authenticator: identifies callers.
            on_this_host: whether all readers are on this host and need no token. If so, the Host header must be
                ``localhost``, a name that ends in ``.localhost``, or an IP address. This prevents DNS rebinding, where
                a web page points its own host name at this server, and reads the replies.
        """
        self._authenticator = authenticator
        self._on_this_host = on_this_host

    def identify(self, request: Request) -> Caller:
        """Return the reader who sends a request.

        Raises:
            RequestError: UNAUTHENTICATED.
            HTTPException: 421 if the Host header must name this host, but does not.
        """
        host = request.headers.get("host", "")
        if self._on_this_host and not _names_this_host(host):
            raise HTTPException(421, f"expected localhost or an IP address as the host, got {host!r}")
        return self._authenticator.caller_of(_metadata(request))


def _metadata(request: Request) -> list[tuple[str, str]]:
    return [(name, _bearer(value)) for name, value in request.headers.items()]


def _names_this_host(authority: str) -> bool:
    try:
        host = urlsplit(f"//{authority}").hostname or ""
        return host == "localhost" or host.endswith(".localhost") or bool(ip_address(host))
    except ValueError:
        return False


def _bearer(header: str) -> str:
    """Convert a header's value from Basic to Bearer, with the password as the token; return other values unchanged."""
    if not header.lower().startswith(_BASIC):
        return header
    try:
        _, _, password = base64.b64decode(header[len(_BASIC) :].strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return header
    return f"Bearer {password}"
