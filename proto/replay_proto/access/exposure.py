"""Checks that a service reachable from other machines is protected."""

from __future__ import annotations

import ipaddress
import logging
import socket
from dataclasses import dataclass

log = logging.getLogger(__name__)


class ExposedError(Exception):
    """An unprotected service would be reachable from other machines; the message says what to do."""


@dataclass(frozen=True)
class Protection:
    """How a service is protected."""

    tls: bool
    """Whether connections are encrypted."""
    client_certificates: bool
    """Whether clients need a certificate."""
    tokens: bool
    """Whether callers need a token."""


def check_exposure(
    host: str,
    protection: Protection,
    *,
    insecure: bool,
    flag_prefix: str = "--",
    host_flag: str = "",
    risk: str = "read and delete everything",
) -> None:
    """Refuse to listen for other machines without protection, and warn about partial protection.

    Tokens or client certificates protect a service. TLS alone does not: it encrypts, but admits everyone.

    Args:
        host: the address to listen on.
        protection: how the service is protected.
        insecure: whether the user accepts that there is no protection.
        flag_prefix: start of the flags for access.
        host_flag: the flag that sets the host. If empty, it is ``host`` after ``flag_prefix``.
        risk: what anyone could do without protection.

    Raises:
        ExposedError: other machines could call, there is no protection, and ``insecure`` is not set.
    """
    if is_loopback(host):
        return
    if not (protection.tokens or protection.client_certificates):
        if not insecure:
            missing = "tokens or client certificates" if protection.tls else "tokens and TLS"
            encrypts = "; TLS alone encrypts, but admits everyone" if protection.tls else ""
            raise ExposedError(
                f"{host_flag or f'{flag_prefix}host'} {host} is reachable from other machines, and without {missing} "
                f"anyone could {risk}{encrypts}; expected {flag_prefix}tokens, or {flag_prefix}tls-client-ca with "
                f"{flag_prefix}tls-cert and {flag_prefix}tls-key, or, on a trusted network, {flag_prefix}insecure"
            )
        log.warning("anyone who reaches %s can %s: there are no tokens or client certificates", host, risk)
    elif not protection.tls:
        log.warning("tokens and rows travel in plain text without TLS")


def is_loopback(host: str) -> bool:
    """Whether an address is reachable only from this machine. For a name, this must hold for all of its addresses."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(ipaddress.ip_address(str(each[4][0]).partition("%")[0]).is_loopback for each in found)
