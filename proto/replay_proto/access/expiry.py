"""Reads when a certificate expires, with nothing but the standard library."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

_END: Final = "-----END CERTIFICATE-----"
_UTC_TIME, _VERSION = 0x17, 0xA0
_LONG_LENGTH: Final = 0x80
_FORMATS: Final = {_UTC_TIME: "%y%m%d%H%M%SZ"}
_GENERALIZED_FORMAT: Final = "%Y%m%d%H%M%SZ"
_BEFORE_VALIDITY: Final = 3
"""Fields between the version and the validity: serial number, signature algorithm and issuer. See RFC 5280, 4.1."""


def expiry_of(path: Path) -> datetime | None:
    """Return when the first certificate of a PEM file expires; None if the file has none that can be read."""
    try:
        first = path.read_text("ascii", "replace").partition(_END)[0]
        der = ssl.PEM_cert_to_DER_cert(first[first.index("-----BEGIN CERTIFICATE-----") :] + _END)
        return _not_after(der)
    except (OSError, ValueError, IndexError):
        return None


def _not_after(der: bytes) -> datetime:
    """Walk to the end of the validity in a certificate's DER."""
    _, certificate, _ = _element(der)
    _, signed, _ = _element(certificate)
    kind, _, after = _element(signed)
    rest = after if kind == _VERSION else signed
    for _ in range(_BEFORE_VALIDITY):
        _, _, rest = _element(rest)
    _, validity, _ = _element(rest)
    _, _, end = _element(validity)
    kind, text, _ = _element(end)
    return datetime.strptime(text.decode("ascii"), _FORMATS.get(kind, _GENERALIZED_FORMAT)).replace(tzinfo=UTC)


def _element(der: bytes) -> tuple[int, bytes, bytes]:
    """Split the first element off: its tag, its content, and what follows it."""
    tag, length, start = der[0], der[1], 2
    if length & _LONG_LENGTH:
        start += length & ~_LONG_LENGTH
        length = int.from_bytes(der[2:start], "big")
    return tag, der[start : start + length], der[start + length :]
