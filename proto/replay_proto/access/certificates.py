"""Reads certificates: those that a service presents, which it reads again when they change, and when one expires."""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import grpc

from replay_proto.access.watched import UnusableFileError, Watched, exposure_of

log = logging.getLogger(__name__)

RENEWAL_S: Final = 60.0
"""Maximum age of resumable TLS sessions, in seconds, if clients need certificates. A client that resumes a session does
not show its certificate again, although it may have expired."""
_Pem = tuple[bytes, bytes, bytes | None]
"""The private key, its certificate, and the authority for client certificates."""


class ServerCertificates:
    """A server certificate with its key, and optionally the authority for client certificates."""

    def __init__(
        self,
        certificate: Path,
        key: Path,
        client_ca: Path | None,
        renewal_s: float = RENEWAL_S,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the certificate chain and its key, both PEM, without a password; raise `UnusableFileError`.

        ``client_ca`` must have signed client certificates; None: clients need none. With it, ``renewal_s`` is the
        maximum age of a resumable TLS session, in seconds. ``ticks`` is a monotonic clock, in seconds.
        """
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        paths = [path for path in (certificate, key, client_ca) if path is not None]
        self._files = Watched(paths, self._read)
        self._renewal_s = renewal_s
        self._ticks = ticks
        self._renewed_at = ticks()
        self._version = 0
        self._lock = threading.Lock()  # gRPC calls from its own threads
        self._warn()

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials for one port of a gRPC server. The files are checked whenever a client connects."""
        with self._lock:
            given = self._version
            first = self._configuration()

        def newer() -> grpc.ServerCertificateConfiguration | None:
            """Return the configuration if it has changed. Otherwise, return None, so that gRPC keeps the last one."""
            nonlocal given
            with self._lock:
                self._look()
                if given == self._version:
                    return None
                given = self._version
                return self._configuration()

        return grpc.dynamic_ssl_server_credentials(
            first,
            newer,  # type: ignore[arg-type]  # None is allowed, but missing in the types
            require_client_authentication=self._client_ca is not None,
        )

    def ssl_context(self) -> ssl.SSLContext:
        """Return a TLS context for a port without gRPC. The files are checked whenever a client connects."""
        current, version = self._new_context(), self._version

        def select(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            nonlocal current, version
            with self._lock:
                # Files that are being replaced may not match yet.
                with suppress(OSError, UnusableFileError):
                    self._look()
                    if version != self._version:
                        current, version = self._new_context(), self._version
                connection.context = current

        current.sni_callback = select  # called for every connection, also without a name
        return current

    def _new_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # Without resumable sessions, every connection shows its certificate.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
        context.load_cert_chain(self._certificate, self._key, password="")
        if self._client_ca is not None:
            context.load_verify_locations(self._client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _look(self) -> None:
        """Request a new configuration if the files have changed, or the session keys are due for renewal.

        gRPC generates new session keys for each configuration, so older sessions cannot be resumed.
        """
        now = self._ticks()
        if self._files.refresh():
            self._warn()
        elif self._client_ca is None or now - self._renewed_at < self._renewal_s:
            return
        self._renewed_at = now
        self._version += 1

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        """Create a new configuration for gRPC, which frees every configuration after use."""
        key, certificate, client_ca = self._files.value
        return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=client_ca)

    def _warn(self) -> None:
        """Log a warning if others can read the key."""
        with suppress(OSError):  # the file was just removed
            exposure = exposure_of(self._key)
            if exposure is not None:
                log.warning("%s", exposure)

    def _read(self) -> _Pem:
        certificate, key = _content(self._certificate), _content(self._key)
        client_ca = None if self._client_ca is None else _content(self._client_ca)
        self._check()
        return key, certificate, client_ca

    def _check(self) -> None:
        """Check the files with OpenSSL, because gRPC would report an error only when a client connects."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # An empty password prevents a prompt in the terminal.
            context.load_cert_chain(self._certificate, self._key, password="")
        except (OSError, ValueError) as error:
            raise UnusableFileError(
                f"{self._certificate}, {self._key}: expected a certificate and its key without a password, both PEM, "
                f"got: {error}"
            ) from error
        if self._client_ca is None:
            return
        try:
            context.load_verify_locations(self._client_ca)
        except (OSError, ValueError) as error:
            raise UnusableFileError(f"{self._client_ca}: expected PEM certificates, got: {error}") from error


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UnusableFileError(f"{path}: expected a PEM file, got: {error.strerror}") from error


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
