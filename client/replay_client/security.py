"""Authentication of clients and servers: tokens and TLS.

    ReplayClient("buffer:50051", token=token, tls=Tls(ca="ca.pem"))
    ReplayClient("buffer:50051", tls=Tls(ca="ca.pem", cert="actor.pem", key="actor.key"))     # mutual TLS

Certificates, and tokens from files, are read again when the files change, so a running client follows their renewal.

The commands read tokens and TLS settings from environment variables, because other users can see command lines:

    REPLAY_TOKEN            the token
    REPLAY_TOKEN_FILE       a file with the token, read again when it changes
    REPLAY_TLS              1: use TLS (implied by each of the following)
    REPLAY_TLS_CA           CA of the server's certificate, PEM
    REPLAY_TLS_CERT         this client's certificate, PEM
    REPLAY_TLS_KEY          its private key, PEM
    REPLAY_TLS_SERVER_NAME  the name in the server's certificate, if it differs from the address
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

import grpc
from replay_proto.access.certificates import expiry_of
from replay_proto.access.watched import UnusableFileError, Watched
from replay_proto.channels import Options, open_channel
from replay_proto.errors import without_effect

from replay_client.errors import DeadlineExceededError, InvalidArgumentError, ReplayError, ServerUnavailableError

log = logging.getLogger(__name__)

Token = str | Path | Callable[[], str]
"""A token; the path of a file with it, read again when it changes; or a function that returns it, called before each
call and each connection, so it should remember the token until shortly before it expires."""
Metadata = tuple[tuple[str, str], ...]

TOKEN_VARIABLE: Final = "REPLAY_TOKEN"
TOKEN_FILE_SUFFIX: Final = "_FILE"
TLS_PREFIX: Final = "REPLAY_TLS"
_ON: Final = ("1", "true", "yes", "on")
_OFF: Final = ("", "0", "false", "no", "off")
_TOKEN: Final = re.compile(r"[!-~]+")
_NAME_OPTION: Final = "grpc.ssl_target_name_override"
_HEADER: Final = "authorization"
T = TypeVar("T")


@dataclass(frozen=True)
class Tls:
    """TLS settings. Files are PEM. They are read when a client is created, and again when they change."""

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
        known = [f"{prefix}_{field.upper()}" for field in cls.__dataclass_fields__]
        for name, value in variables.items():
            if name.startswith(f"{prefix}_") and name not in known and value:
                log.warning("%s", without_effect(name, known))
        given = {field: variables.get(f"{prefix}_{field.upper()}") or None for field in cls.__dataclass_fields__}
        switch = variables.get(prefix, "").lower()
        if switch not in (*_ON, *_OFF):
            raise InvalidArgumentError.of_field(prefix, "1 or 0", repr(switch))
        return cls(**given) if switch in _ON or any(given.values()) else None

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that these settings name."""
        return tuple(Path(path) for path in (self.ca, self.cert, self.key) if path is not None)

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files and return credentials for a gRPC channel.

        Raises:
            InvalidArgumentError: a file cannot be read or used.
        """
        credentials = grpc.ssl_channel_credentials(
            root_certificates=_content("tls.ca", self.ca),
            private_key=_content("tls.key", self.key),
            certificate_chain=_content("tls.cert", self.cert),
        )
        self._check()
        return credentials

    def expired_at(self, now: datetime) -> datetime | None:
        """Return when this client's certificate expired; None if it is valid, or there is none."""
        end = None if self.cert is None else expiry_of(Path(self.cert))
        return None if end is None or end > now else end

    def _check(self) -> None:
        """Check the files with OpenSSL, because gRPC would report an error only when it connects."""
        import ssl  # only for TLS, because it takes 10 ms

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            if self.ca is not None:
                context.load_verify_locations(self.ca)
        except (OSError, ValueError) as error:
            raise InvalidArgumentError.of_field("tls.ca", "PEM certificates", f"{str(self.ca)!r}: {error}") from None
        try:
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key, password="")  # an empty password prevents a prompt
        except (OSError, ValueError) as error:
            expected = "a certificate and its key without a password, both PEM"
            raise InvalidArgumentError.of_field(
                "tls.cert, tls.key", expected, f"{str(self.cert)!r}, {str(self.key)!r}: {error}"
            ) from None


class Access:
    """The token and certificates of a client, as they are now. Thread-safe."""

    def __init__(self, token: Token | None = None, tls: Tls | None = None) -> None:
        """Read the files.

        Raises:
            InvalidArgumentError: a file cannot be used, or the token is malformed; the message does not show it.
        """
        self._current_token = _reader_of(token)
        self._tls = tls
        self._credentials = None if tls is None else _watched(tls.files, tls.credentials)
        if not callable(token):
            self.metadata()

    def metadata(self) -> Metadata:
        """Return the metadata that authenticates a call."""
        return token_metadata(self._current_token())

    def authorization(self) -> str:
        """Return the header that authenticates a call; empty without a token."""
        return dict(self.metadata()).get(_HEADER, "")

    def is_renewed(self) -> bool:
        """Whether the certificates were renewed since the last call. Channels opened earlier have the old ones."""
        return self._credentials is not None and self._credentials.refresh()

    def open_channel(self, address: str, options: Options) -> grpc.Channel:
        """Open a channel to a server, with TLS if there are settings for it."""
        return open_channel(address, *self.channel_security(options))

    def channel_security(self, options: Options) -> tuple[grpc.ChannelCredentials | None, Options]:
        """Return the credentials of a new channel, or None for plain text, and its options."""
        if self._tls is None or self._credentials is None:
            return None, options
        name = self._tls.server_name
        return self._credentials.value, (*options, *(() if name is None else ((_NAME_OPTION, name),)))

    def explained(self, error: ReplayError) -> ReplayError:
        """Return the error; if no server answered, and the certificate has expired, its message says so."""
        if isinstance(error, ServerUnavailableError | DeadlineExceededError) and not error.reason and self._tls:
            moment = self._tls.expired_at(datetime.now(UTC))
            if moment is not None:
                error.message += (
                    f"; the certificate of this client, {self._tls.cert}, expired at {moment:%Y-%m-%d %H:%M:%S} UTC: "
                    "renew it, and the client uses the new one"
                )
                error.args = (error.message,)
        return error


def _reader_of(token: Token | None) -> Callable[[], str | None]:
    """Return a function that returns the token as it is now."""
    if isinstance(token, Path):
        file = _watched([token], lambda: _read_token(token))

        def read() -> str:
            file.refresh()
            return file.value

        return read
    return token if callable(token) else lambda: token


def _watched(paths: Sequence[Path], read: Callable[[], T]) -> Watched[T]:
    """Watch files. Their first content must be usable; later, the last usable content stays in effect."""

    def read_again() -> T:
        try:
            return read()
        except InvalidArgumentError as error:
            raise UnusableFileError(str(error)) from error

    read()  # so that the first error is of the caller's argument
    return Watched(paths, read_again)


def _read_token(path: Path) -> str:
    try:
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidArgumentError.of_field("token", "a file with a token", f"{str(path)!r}: {reason}") from None
    token_metadata(token)
    return token


def token_metadata(token: str | None) -> Metadata:
    """Return the metadata that authenticates a call.

    Raises:
        InvalidArgumentError: the token is malformed; the message does not show it.
    """
    if token is None:
        return ()
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise InvalidArgumentError.of_field("token", "ASCII characters without spaces", "something else")
    return ((_HEADER, f"Bearer {token}"),)


def token_from_environment(
    variable: str = TOKEN_VARIABLE, environment: Mapping[str, str] | None = None
) -> str | Path | None:
    """Read the token from an environment variable, or return the file in the variable with ``_FILE`` after its name.

    Returns:
        None if neither variable is set.
    """
    variables = os.environ if environment is None else environment
    path = variables.get(f"{variable}{TOKEN_FILE_SUFFIX}", "").strip()
    return variables.get(variable, "").strip() or (Path(path) if path else None)


def _content(field: str, path: str | Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgumentError.of_field(field, "a PEM file", f"{str(path)!r}: {error.strerror}") from None
