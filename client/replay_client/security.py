"""Authentication of clients and servers: tokens and TLS.

    ReplayClient("buffer:50051", token=token, tls=Tls(ca="ca.pem"))
    ReplayClient("buffer:50051", tls=Tls(ca="ca.pem", cert="actor.pem", key="actor.key"))     # mutual TLS

The commands read tokens and TLS settings from environment variables, because other users can see command lines:

    REPLAY_TOKEN            the token
    REPLAY_TLS              1: use TLS (implied by each of the following)
    REPLAY_TLS_CA           CA of the server's certificate, PEM
    REPLAY_TLS_CERT         this client's certificate, PEM
    REPLAY_TLS_KEY          its private key, PEM
    REPLAY_TLS_SERVER_NAME  the name in the server's certificate, if it differs from the address
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from replay_client.errors import InvalidArgumentError

TOKEN_VARIABLE: Final = "REPLAY_TOKEN"
TLS_PREFIX: Final = "REPLAY_TLS"
_ON: Final = ("1", "true", "yes", "on")
_OFF: Final = ("", "0", "false", "no", "off")
_TOKEN: Final = re.compile(r"[!-~]+")
_NAME_OPTION: Final = "grpc.ssl_target_name_override"


@dataclass(frozen=True)
class Tls:
    """TLS settings. Files are PEM and are read when a client is created."""

    ca: str | Path | None = None
    """CA of the server's certificate; None: gRPC's default public CAs."""
    cert: str | Path | None = None
    """This client's certificate, if the server requires one."""
    key: str | Path | None = None
    """Private key of the certificate."""
    server_name: str | None = None
    """The name in the server's certificate, if it differs from the address."""

    def __post_init__(self) -> None:
        """Check that certificate and key are given together.

        Raises:
            InvalidArgumentError: only one of them is given.
        """
        if (self.cert is None) != (self.key is None):
            raise InvalidArgumentError.of_field("tls", "cert and key together", "one of them")

    @classmethod
    def from_environment(cls, prefix: str = TLS_PREFIX, environment: Mapping[str, str] | None = None) -> Tls | None:
        """Read the environment variables; see the module.

        Args:
            prefix: prefix of the variables' names.
            environment: the variables (default: this process's environment).

        Returns:
            The settings, or None for no TLS.

        Raises:
            InvalidArgumentError: the variables contradict each other.
        """
        variables = os.environ if environment is None else environment
        given = {field: variables.get(f"{prefix}_{field.upper()}") or None for field in cls.__dataclass_fields__}
        switch = variables.get(prefix, "").lower()
        if switch not in (*_ON, *_OFF):
            raise InvalidArgumentError.of_field(prefix, "1 or 0", repr(switch))
        return cls(**given) if switch in _ON or any(given.values()) else None

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files and return credentials for a gRPC channel.

        Raises:
            InvalidArgumentError: a file cannot be read.
        """
        return grpc.ssl_channel_credentials(
            root_certificates=_content("tls.ca", self.ca),
            private_key=_content("tls.key", self.key),
            certificate_chain=_content("tls.cert", self.cert),
        )


def open_channel(address: str, tls: Tls | None, options: Sequence[tuple[str, object]]) -> grpc.Channel:
    """Open a channel to a server, with TLS unless ``tls`` is None.

    Raises:
        InvalidArgumentError: a file in ``tls`` cannot be read.
    """
    credentials, options = channel_security(tls, options)
    if credentials is None:
        return grpc.insecure_channel(address, options=options)
    return grpc.secure_channel(address, credentials, options=options)


def channel_security(
    tls: Tls | None, options: Sequence[tuple[str, object]]
) -> tuple[grpc.ChannelCredentials | None, Sequence[tuple[str, object]]]:
    """Return the credentials of a channel, or None for plain text, and its options.

    Raises:
        InvalidArgumentError: a file in ``tls`` cannot be read.
    """
    if tls is None:
        return None, options
    named = () if tls.server_name is None else ((_NAME_OPTION, tls.server_name),)
    return tls.credentials(), (*options, *named)


def token_metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    """Return the metadata that authenticates a call.

    Raises:
        InvalidArgumentError: the token is malformed; the message does not show it.
    """
    if token is None:
        return ()
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise InvalidArgumentError.of_field("token", "ASCII characters without spaces", "something else")
    return (("authorization", f"Bearer {token}"),)


def token_from_environment(variable: str = TOKEN_VARIABLE) -> str | None:
    """Read the token from an environment variable; None if it is not set."""
    return os.environ.get(variable, "").strip() or None


def _content(field: str, path: str | Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgumentError.of_field(field, "a PEM file", f"{str(path)!r}: {error.strerror}") from None
