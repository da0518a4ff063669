"""TLS certificates of a server, read again when the files change."""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import grpc

from replay_proto.access.watched import UnusableFileError, Watched, exposure_of

log = logging.getLogger(__name__)

RENEWAL_S: Final = 60.0
"""Maximum age of resumable TLS sessions if clients need certificates. Resuming skips the certificate, even an expired
one."""
_Pem = tuple[bytes, bytes, bytes | None]
"""The key, its certificate, and the authority of clients."""


class ServerCertificates:
    """A certificate with its key, and the authority whose clients may connect."""

    def __init__(
        self,
        certificate: Path,
        key: Path,
        client_ca: Path | None,
        renewal_s: float = RENEWAL_S,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the files, all PEM.

        Args:
            certificate: the server's certificate, with those that lead from it to its authority.
            key: its private key, without a password.
            client_ca: authority that has to have signed a client's certificate; None: clients need none.
            renewal_s: with a ``client_ca``, how long a TLS session can be resumed at most, in seconds.
            ticks: seconds that never go back.

        Raises:
            UnusableFileError: if one cannot be used.
        """
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        paths = [path for path in (certificate, key, client_ca) if path is not None]
        self._files = Watched(paths, self._read)
        self._renewal_s = renewal_s
        self._ticks = ticks
        self._renewed_at = ticks()
        self._version = 0
        self._lock = threading.Lock()  # servers of gRPC ask in threads of theirs
        self._warn()

    def credentials(self) -> grpc.ServerCredentials:
        """For a port of one server of gRPC. The files are looked at whenever a client connects."""
        with self._lock:
            given = self._version
            first = self._configuration()

        def newer() -> grpc.ServerCertificateConfiguration | None:
            """The configuration if it is not the one given last; None lets gRPC go on with that."""
            nonlocal given
            with self._lock:
                self._look()
                if given == self._version:
                    return None
                given = self._version
                return self._configuration()

        return grpc.dynamic_ssl_server_credentials(
            first,
            newer,  # type: ignore[arg-type]  # None is allowed, which its types do not say
            require_client_authentication=self._client_ca is not None,
        )

    def _look(self) -> None:
        """Count a new version if the files have changed, or it is time for new keys of sessions.

        With each configuration gRPC makes new ones, so that no session of before can be resumed.
        """
        now = self._ticks()
        if self._files.refresh():
            self._warn()
        elif self._client_ca is None or now - self._renewed_at < self._renewal_s:
            return
        self._renewed_at = now
        self._version += 1

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        """Made anew each time: gRPC frees what it is given."""
        key, certificate, client_ca = self._files.value
        return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=client_ca)

    def _warn(self) -> None:
        """Say so if others can read the key."""
        with suppress(OSError):  # it was removed just now
            exposure = exposure_of(self._key)
            if exposure is not None:
                log.warning("%s", exposure)

    def _read(self) -> _Pem:
        certificate, key = _content(self._certificate), _content(self._key)
        client_ca = None if self._client_ca is None else _content(self._client_ca)
        self._check()
        return key, certificate, client_ca

    def _check(self) -> None:
        """Let OpenSSL look at the files: gRPC would tell of a fault only when somebody connects."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # An empty password in place of a question in the terminal.
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
