"""How a client shows who it is, and makes sure of its server: a token, and TLS.

    ReplayClient("buffer:50051", token=token, tls=Tls(ca="ca.pem"))
    ReplayClient("buffer:50051", tls=Tls(ca="ca.pem", cert="actor.pem", key="actor.key"))     # mutual TLS

The commands of this distribution read both from variables, so that no token stands in a command line:

    REPLAY_TOKEN            the token
    REPLAY_TLS              1: use TLS (implied by each of the following)
    REPLAY_TLS_CA           authority of the server's certificate, PEM
    REPLAY_TLS_CERT         this client's certificate, PEM
    REPLAY_TLS_KEY          its private key, PEM
    REPLAY_TLS_SERVER_NAME  the name in the server's certificate, where it is not that of the address
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
    """TLS to a server. Files are PEM; they are read when a client is made."""

    ca: str | Path | None = None
    """Authority that signed the server's certificate; None: the public ones that gRPC knows."""
    cert: str | Path | None = None
    """This client's certificate, where the server wants one,"""
    key: str | Path | None = None
    """and its private key."""
    server_name: str | None = None
    """The name that the server's certificate has; None: that of the address."""

    def __post_init__(self) -> None:
        """Refuse half of a pair.

        Raises:
            InvalidArgumentError: if there is a certificate without its key, or the reverse.
        """
        if (self.cert is None) != (self.key is None):
            raise InvalidArgumentError.of_field("tls", "cert and key together", "one of them")

    @classmethod
    def from_environment(cls, prefix: str = TLS_PREFIX, environment: Mapping[str, str] | None = None) -> Tls | None:
        """What the variables say; see the module.

        Args:
            prefix: what the variables begin with.
            environment: the variables; None: those of this process.

        Returns:
            None if there is to be no TLS.

        Raises:
            InvalidArgumentError: if they contradict each other.
        """
        variables = os.environ if environment is None else environment
        given = {field: variables.get(f"{prefix}_{field.upper()}") or None for field in cls.__dataclass_fields__}
        switch = variables.get(prefix, "").lower()
        if switch not in (*_ON, *_OFF):
            raise InvalidArgumentError.of_field(prefix, "1 or 0", repr(switch))
        return cls(**given) if switch in _ON or any(given.values()) else None

    def credentials(self) -> grpc.ChannelCredentials:
        """For a channel of gRPC.

        Raises:
            InvalidArgumentError: if a file cannot be read.
        """
        return grpc.ssl_channel_credentials(
            root_certificates=_content("tls.ca", self.ca),
            private_key=_content("tls.key", self.key),
            certificate_chain=_content("tls.cert", self.cert),
        )


def open_channel(address: str, tls: Tls | None, options: Sequence[tuple[str, object]]) -> grpc.Channel:
    """A channel to a server, encrypted if ``tls`` says how.

    Raises:
        InvalidArgumentError: if a file that it names cannot be read.
    """
    if tls is None:
        return grpc.insecure_channel(address, options=options)
    named = () if tls.server_name is None else ((_NAME_OPTION, tls.server_name),)
    return grpc.secure_channel(address, tls.credentials(), options=(*options, *named))


def token_metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    """What a call carries to say who it is from.

    Raises:
        InvalidArgumentError: if it cannot be a token; it is not shown.
    """
    if token is None:
        return ()
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise InvalidArgumentError.of_field("token", "ASCII characters without spaces", "something else")
    return (("authorization", f"Bearer {token}"),)


def token_from_environment(variable: str = TOKEN_VARIABLE) -> str | None:
    """The token in a variable; None if there is none."""
    return os.environ.get(variable, "").strip() or None


def _content(field: str, path: str | Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgumentError.of_field(field, "a PEM file", f"{str(path)!r}: {error.strerror}") from None
