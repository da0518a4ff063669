"""TLS of a server: its certificate, and whose clients it takes, read again when the files change."""

from __future__ import annotations

import logging
import ssl
from contextlib import suppress
from pathlib import Path

import grpc

from replay_proto.access.private_files import exposure_of
from replay_proto.access.watched import UnusableFileError, Watched

log = logging.getLogger(__name__)


class ServerCertificates:
    """A certificate with its key, and the authority whose clients may connect."""

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None) -> None:
        """Read the files, all PEM.

        Args:
            certificate: the server's certificate, with those that lead from it to its authority.
            key: its private key, without a password.
            client_ca: authority that has to have signed a client's certificate; None: clients need none.

        Raises:
            UnusableFileError: if one cannot be used.
        """
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        paths = [path for path in (certificate, key, client_ca) if path is not None]
        self._files = Watched(paths, self._read)
        self._warn()

    def credentials(self) -> grpc.ServerCredentials:
        """For a port of gRPC. The files are looked at whenever a client connects."""
        return grpc.dynamic_ssl_server_credentials(
            self._files.value,
            self._newer,  # type: ignore[arg-type]  # None is allowed, which its types do not say
            require_client_authentication=self._client_ca is not None,
        )

    def _newer(self) -> grpc.ServerCertificateConfiguration | None:
        """The configuration if it has changed; None lets gRPC go on with the one it has."""
        if not self._files.refresh():
            return None
        self._warn()
        return self._files.value

    def _warn(self) -> None:
        """Say so if others can read the key."""
        with suppress(OSError):  # it was removed just now
            exposure = exposure_of(self._key)
            if exposure is not None:
                log.warning("%s", exposure)

    def _read(self) -> grpc.ServerCertificateConfiguration:
        self._check()
        try:
            return grpc.ssl_server_certificate_configuration(
                [(self._key.read_bytes(), self._certificate.read_bytes())],
                root_certificates=None if self._client_ca is None else self._client_ca.read_bytes(),
            )
        except OSError as error:
            raise UnusableFileError(str(error)) from error

    def _check(self) -> None:
        """Let OpenSSL look at the files: gRPC would tell of a fault only when somebody connects."""
        for path in filter(None, (self._certificate, self._key, self._client_ca)):
            try:
                path.read_bytes()
            except OSError as error:
                raise UnusableFileError(f"{path}: expected a PEM file, got: {error.strerror}") from error
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
