"""Checks the format of server addresses, and whether anything listens there."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from typing import Final

from replay_client.errors import InvalidArgumentError

_TCP: Final = re.compile(
    r"(?:dns:(?://[^/\s]*)?/?)?(?:\[(?P<v6>[0-9A-Fa-f:.]+(?:%\w+)?)\]|(?P<host>[^\[\]:/,%@\s]+)):(?P<port>[0-9]{1,5})"
)
"""gRPC targets that name one host; see gRPC's documentation on naming."""
_UNIX: Final = re.compile(r"unix:\S+")
_EXPECTED: Final = "host:port, such as localhost:50051 or [::1]:50051"
_THIS_HOST: Final = re.compile(r"localhost|127(?:\.[0-9]+){3}|::1")
_NUMBER: Final = re.compile(r"([0-9]+)")
_LISTENS_S: Final = 0.5
_LAST_PORT: Final = (1 << 16) - 1


def checked_address(address: object) -> str:
    """Check an address: ``host:port``, or gRPC's ``dns:...`` or ``unix:path``."""
    if isinstance(address, str):
        tcp = _TCP.fullmatch(address)
        if _UNIX.fullmatch(address) or (tcp is not None and 1 <= int(tcp["port"]) <= _LAST_PORT):
            return address
    raise InvalidArgumentError.of_field("address", _EXPECTED, repr(address))


def checked_addresses(addresses: object) -> list[str]:
    """Check the addresses of several servers, at least one, and none twice."""
    given = [] if isinstance(addresses, str) or not isinstance(addresses, Iterable) else list(addresses)
    checked = [checked_address(address) for address in given]
    if not checked or len({*checked}) < len(checked):
        expected = "a list of different addresses, such as ['host-a:50051', 'host-b:50051']"
        raise InvalidArgumentError.of_field("addresses", expected, repr(addresses))
    return checked


def address_order(address: str) -> tuple[tuple[str | int, ...], int]:
    """Return a sort key: ``server:50051`` comes before ``server-2:50051``, and that before ``server-10:50051``."""
    found = _TCP.fullmatch(address)
    host, port = (address, 0) if found is None else (found["v6"] or found["host"], int(found["port"]))
    parts = _NUMBER.split(host)  # text and digits in turn, beginning with text
    return tuple(int(part) if number % 2 else part for number, part in enumerate(parts)), port


def listens(address: str) -> bool:
    """Connect to an address to see if a server listens there. False for addresses that only gRPC can resolve."""
    found = _TCP.fullmatch(address)
    if found is None:
        return False
    try:
        with socket.create_connection((found["v6"] or found["host"], int(found["port"])), _LISTENS_S):
            return True
    except OSError:
        return False


def how_to_start(address: str) -> str:
    """Return advice for users if no server answers at an address."""
    found = _TCP.fullmatch(address)
    if found is None:
        return "is a server there?"
    command = f"`replay-server --port {found['port']}`"
    if _THIS_HOST.fullmatch(found["v6"] or found["host"]):
        return f"start one with {command}"
    return f"start one there with {command}, or check the network between here and there"
