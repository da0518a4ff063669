"""Bearer tokens in a TOML file, with their rights and tables.

    [[tokens]]
    name = "actors"                       # identifies the token in logs and messages
    token = "8Yp0J...at least 16 characters"
    rights = ["write"]                    # from "read", "write" and "admin"; none includes another
    tables = ["cartpole*", "acrobot"]     # names, with wildcards * and ?; default: all tables
    expires = 2027-01-01T00:00:00Z        # default: never
    max_tables = 10                       # tables that the token may own; default: the server's limit
    max_bytes = 20_000_000_000            # size of these tables when full; default: the server's limit

Instead of `token`, an entry may have `token_sha256`, the token's SHA-256 in hexadecimal. The file alone then grants no
access. The file is reloaded when it changes. If it is missing or has no tokens, all calls are refused. Only hashes are
kept in memory, and they are compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Flag, auto
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from replay_proto.access.watched import UnusableFileError, Watched, exposure_of

log = logging.getLogger(__name__)

REFRESH_S: Final = 1.0
"""Maximum delay until a change of the file is noticed, in seconds."""
LEAST_LENGTH: Final = 16
"""Minimum characters of a token: shorter ones could be guessed."""
ALL_TABLES: Final = "*"
"""Entry in a token's tables that stands for all tables, existing and future."""
_SCHEME: Final = "bearer"
_EXPECTED: Final = {
    "name": "a string to identify the token in logs",
    "token": f"at least {LEAST_LENGTH} ASCII characters without spaces, such as from `openssl rand -hex 32`",
    "token_sha256": "exactly 64 hexadecimal digits, as printed by `printf %s TOKEN | sha256sum | cut -d' ' -f1`",
    "rights": "a list of read, write, admin",
    "tables": "a list of names, with the wildcards * and ? only",
    "expires": "a time with a time zone, such as 2027-01-01T00:00:00Z",
    "max_tables": "a whole number of at least 0",
    "max_bytes": "a whole number of at least 0",
}
_SECRETS: Final = ("token", "token_sha256")
"""Fields that no message may show."""


class Right(Flag):
    """A right that a token grants. No right includes another."""

    READ = auto()
    """See rows and statistics: Sample, Read, Learn, Inspect, ListTables, Stats."""
    WRITE = auto()
    """Change rows: Insert, Write, UpdatePriorities, UpdateRows, ReportShard."""
    ADMIN = auto()
    """Change tables as a whole: CreateTable, ResetTable, DropTable, Checkpoint."""

    @classmethod
    def any(cls) -> Right:
        """Return all rights, for operations that accept any of them."""
        return cls.READ | cls.WRITE | cls.ADMIN

    def words(self) -> list[str]:
        """Return the rights as the file spells them."""
        return [str(right.name).lower() for right in self]


@dataclass(frozen=True)
class TokenEntry:
    """What the file says of one token."""

    name: str
    """Name of the token; messages show it instead of the token."""
    digest: bytes = field(repr=False)
    """SHA-256 of the token."""
    rights: Right
    """Its rights."""
    tables: tuple[str, ...] = (ALL_TABLES,)
    """Names of the tables that the rights apply to, with wildcards * and ?."""
    expires: datetime | None = None
    """Time of expiry; None: never."""
    max_tables: int | None = None
    """Maximum number of tables that the token owns; None: the server's limit."""
    max_bytes: int | None = None
    """Maximum bytes of these tables when full; None: the server's limit."""
    in_plain_text: bool = False
    """Whether the file contains the token itself."""

    def allows(self, one_of: Right, table: str | None) -> bool:
        """Whether the token grants one of these rights on a table or, if it is None, on at least one table."""
        if not self.rights & one_of:
            return False
        return table is None or any(fnmatchcase(table, pattern) for pattern in self.tables)

    def allows_on_all(self, one_of: Right) -> bool:
        """Whether the token grants one of these rights on all tables, existing or future."""
        return bool(self.rights & one_of) and ALL_TABLES in self.tables

    def has_expired(self, now_s: float) -> bool:
        """Whether the token has expired at this time, in seconds since 1970."""
        return self.expires is not None and now_s >= self.expires.timestamp()


def _printable(text: str) -> str:
    if not text or not text.isprintable():
        raise ValueError
    return text


class _Entry(BaseModel):
    """An entry of the file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Annotated[str, AfterValidator(_printable)]
    token: Annotated[str, Field(pattern=rf"^[!-~]{{{LEAST_LENGTH},}}$")] | None = None
    token_sha256: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")] | None = None
    rights: Annotated[list[Literal["read", "write", "admin"]], Field(min_length=1)]
    # No table has such a name; and fnmatch takes brackets for wildcards, which nobody has asked for.
    tables: Annotated[list[Annotated[str, Field(pattern=r"^[^\[\]]+$")]], Field(min_length=1)] = [ALL_TABLES]
    expires: AwareDatetime | None = None
    max_tables: NonNegativeInt | None = None
    max_bytes: NonNegativeInt | None = None


class Tokens:
    """The tokens of a file."""

    def __init__(
        self, path: Path, clock: Callable[[], float] = time.time, ticks: Callable[[], float] = time.monotonic
    ) -> None:
        """Read the file. ``clock`` returns seconds since 1970, for expiry; ``ticks`` is a monotonic clock."""
        self._path = path
        self._clock = clock
        self._ticks = ticks
        self._file: Watched[tuple[TokenEntry, ...]] = Watched([path], lambda: read_entries(path), if_gone=())
        self._looked_at = ticks()
        exposure = self._exposure()
        if exposure is not None and any(entry.in_plain_text for entry in self._file.value):
            raise UnusableFileError(f"{exposure}, or replace token by token_sha256")
        self._warn(exposure)

    def digest_of(self, token: str) -> bytes | None:
        """Return the digest of a known token, or None for an unknown one.

        Compares with every digest in constant time, so timing reveals nothing.
        """
        self._refresh()
        given = _digest(token)
        known = False
        for entry in self._file.value:
            known |= hmac.compare_digest(entry.digest, given)
        return given if known else None

    def entry(self, digest: bytes) -> TokenEntry | None:
        """Return the current entry of the token with this digest; None if it was removed from the file."""
        self._refresh()
        return next((entry for entry in self._file.value if entry.digest == digest), None)

    def has_expired(self, entry: TokenEntry) -> bool:
        """Whether the token has expired."""
        return entry.has_expired(self._clock())

    def _refresh(self) -> None:
        now = self._ticks()
        if now - self._looked_at >= REFRESH_S:
            self._looked_at = now
            if self._file.refresh():
                # Apply the new content even if others can read the file, because it may revoke tokens.
                self._warn(self._exposure())

    def _exposure(self) -> str | None:
        """Describe how others can access the file, if they can."""
        try:
            return exposure_of(self._path)
        except OSError:  # the file was removed
            return None

    def _warn(self, exposure: str | None) -> None:
        if exposure is not None:
            log.warning("%s", exposure)
        if not self._file.value:
            log.warning("%s contains no tokens: all calls are refused", self._path)


def bearer_token(headers: Sequence[str]) -> str | None:
    """Return the token in the ``authorization`` headers of a call, such as ``Bearer 8Yp0J...``; None: no header.

    Raises:
        ValueError: there are several headers, or the header has no bearer token.
    """
    if not headers:
        return None
    scheme, _, token = headers[0].partition(" ")
    if len(headers) > 1 or scheme.lower() != _SCHEME or not token.strip():
        raise ValueError("expected one header 'authorization: Bearer TOKEN', got another format")
    return token.strip()


def read_entries(path: Path) -> tuple[TokenEntry, ...]:
    """Read a token file; if it has no tokens, all calls are refused.

    Raises:
        UnusableFileError: the file is invalid; the message names the file and the problem, but no token.
    """
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise UnusableFileError(f"{path}: expected valid TOML: {_without_content(error)}") from None
    except UnicodeDecodeError:
        raise UnusableFileError(f"{path}: expected TOML in UTF-8, got invalid bytes") from None
    except OSError as error:
        expected = "expected a TOML file of tokens that this user can read"
        raise UnusableFileError(f"{path}: {expected}, got: {error.strerror}; give the path of one") from None
    given = content.get("tokens", [])
    if content.keys() - {"tokens"} or not isinstance(given, list):
        raise UnusableFileError(f"{path}: expected only [[tokens]]")
    entries = tuple(_checked(f"{path}: tokens[{index}]", one) for index, one in enumerate(given))
    if len({entry.name for entry in entries}) < len(entries):
        raise UnusableFileError(f"{path}: expected unique names, got a duplicate")
    if len({entry.digest for entry in entries}) < len(entries):
        raise UnusableFileError(f"{path}: expected unique tokens, got a duplicate")
    return entries


def _checked(place: str, given: Any) -> TokenEntry:
    if not isinstance(given, Mapping):
        raise UnusableFileError(f"{place}: expected a table of keys")
    known = _Entry.model_fields.keys()
    if unknown := sorted(given.keys() - known):
        raise UnusableFileError(f"{place}: expected keys among {', '.join(sorted(known))}, got {unknown[0]!r}")
    if ("token" in given) == ("token_sha256" in given):
        raise UnusableFileError(f"{place}: expected either token or token_sha256")
    try:
        read = _Entry.model_validate(given)
    except ValidationError as error:
        key = str(error.errors()[0]["loc"][0])
        got = "" if key in _SECRETS else f", got {given.get(key)}"
        raise UnusableFileError(f"{place}: {key}: expected {_EXPECTED[key]}{got}") from None
    rights = Right(0)
    for word in read.rights:
        rights |= Right[word.upper()]
    return TokenEntry(
        name=read.name,
        digest=_digest(read.token) if read.token is not None else bytes.fromhex(read.token_sha256 or ""),
        rights=rights,
        tables=tuple(read.tables),
        expires=read.expires,
        max_tables=read.max_tables,
        max_bytes=read.max_bytes,
        in_plain_text=read.token is not None,
    )


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _without_content(error: Exception) -> str:
    """Describe an error without quoting the file, which contains secrets."""
    place = re.search(r"\(at [^()]*\)$", str(error))
    return place[0].strip("()") if place else type(error).__name__
