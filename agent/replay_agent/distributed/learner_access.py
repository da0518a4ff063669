"""Access control of the learner's service: TLS, and token files in the replay server's format.

Actors only insert rows. Therefore, their tokens need only the right to write to the run's table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
from replay_proto.access.certificates import ServerCertificates
from replay_proto.access.exposure import Protection
from replay_proto.access.tokens import Right, Tokens, bearer_token

_HEADER: Final = "authorization"


class RefusedError(Exception):
    """The call was refused."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class LearnerAccess:
    """Settings that decide which actors may join a learner.

    Attributes:
        tls_cert: TLS certificate; None: connections are not encrypted.
        tls_key: private key of the certificate.
        tls_client_ca: CA that must have signed actors' certificates; None: actors need no certificate.
        tokens: file of tokens; None: anyone who reaches the learner may join.
    """

    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    tokens: Path | None = None

    @property
    def protection(self) -> Protection:
        """The enabled protections."""
        return Protection(
            tls=self.tls_cert is not None,
            client_certificates=self.tls_client_ca is not None,
            tokens=self.tokens is not None,
        )

    def credentials(self) -> grpc.ServerCredentials | None:
        """Return the credentials of the port, or None for plain text.

        Raises:
            UnusableFileError: a file cannot be used.
        """
        if self.tls_cert is None or self.tls_key is None:
            return None
        return ServerCertificates(self.tls_cert, self.tls_key, self.tls_client_ca).credentials()


class Gate:
    """Refuses calls without a token that grants write access to a table."""

    def __init__(self, tokens: Path | None, table: str) -> None:
        """Read the file of tokens. Without a file, no call is refused.

        Raises:
            UnusableFileError: the file cannot be used.
        """
        self._tokens = None if tokens is None else Tokens(tokens)
        self._table = table

    def check(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """Check the metadata of a call.

        Raises:
            RefusedError: UNAUTHENTICATED or PERMISSION_DENIED.
        """
        if self._tokens is None:
            return
        try:
            token = bearer_token([str(value) for name, value in metadata if name == _HEADER])
        except ValueError as error:
            raise _unauthenticated(str(error)) from None
        if token is None:
            raise _unauthenticated("this learner requires a token, and the call has none")
        digest = self._tokens.digest_of(token)
        entry = None if digest is None else self._tokens.entry(digest)
        if entry is None or self._tokens.has_expired(entry):
            raise _unauthenticated("the token of this call is unknown to this learner, or has expired")
        if not entry.allows(Right.WRITE, self._table):
            raise RefusedError(
                grpc.StatusCode.PERMISSION_DENIED,
                f"the token {entry.name!r} lacks the right write on table {self._table!r}",
            )


def _unauthenticated(message: str) -> RefusedError:
    return RefusedError(grpc.StatusCode.UNAUTHENTICATED, message)
