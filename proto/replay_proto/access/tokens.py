"""Bearer tokens in a TOML file, with their rights and tables.

    [[tokens]]
    name = "actors"                       # identifies the token in logs and messages
    token = "8Yp0J...at least 16 characters"
    rights = ["write"]                    # from "read", "write" and "admin"; each is separate
    tables = ["cartpole*", "acrobot"]     # names, with wildcards * and ?; default: all tables
    expires = 2027-01-01T00:00:00Z        # default: never
    max_tables = 10                       # tables it may own; default: the server's limit
    max_bytes = 20_000_000_000            # size of these when full; default: the server's limit

Instead of `token`, an entry may have `token_sha256`, its SHA-256 in hexadecimal; then the file itself grants no access.
The file is reloaded when it changes. If it is missing or has no tokens, all calls are refused. Only hashes are kept in
memory, and compared in constant time.
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
from typing import Any, Final

from replay_proto.access.private_files import exposure_of
from replay_proto.access.watched import UnusableFileError, Watched

log = logging.getLogger(__name__)

REFRESH_S: Final = 1.0
"""Maximum delay until a change of the file is noticed, in seconds."""
LEAST_LENGTH: Final = 16
"""Minimum characters of a token: shorter ones could be guessed."""
ALL_TABLES: Final = "*"
"""Entry in a token's tables that stands for all tables, existing and future."""
_SCHEME: Final = "bearer"
_TOKEN: Final = re.compile(r"[!-~]+")
_SHA256_HEX: Final = re.compile(r"[0-9a-fA-F]{64}")
_KEYS: Final = frozenset({"name", "token", "token_sha256", "rights", "tables", "expires", "max_tables", "max_bytes"})


class Right(Flag):
    """A right that a token grants. No right includes another."""

    READ = auto()
    """See rows and figures: Sample, Read, Learn, ListTables, Stats."""
    WRITE = auto()
    """Change rows: Insert, Write, UpdatePriorities."""
    ADMIN = auto()
    """Change tables as a whole: CreateTable, ResetTable, DropTable."""

    @classmethod
    def any(cls) -> Right:
        """All rights, for operations that accept any of them."""
        return cls.READ | cls.WRITE | cls.ADMIN

    def words(self) -> list[str]:
        """The rights as spelled in the file."""
        return [str(right.name).lower() for right in self]


@dataclass(frozen=True)
class Grant:
    """The rights of one token."""

    name: str
    """Shown instead of the token."""
    digest: bytes = field(repr=False)
    """SHA-256 of the token."""
    rights: Right
    """Granted rights."""
    tables: tuple[str, ...] = (ALL_TABLES,)
    """Names of the tables that the rights apply to, with wildcards * and ?."""
    expires: datetime | None = None
    """Time of expiry; None: never."""
    max_tables: int | None = None
    """Maximum number of tables that it owns; None: the server's limit."""
    max_bytes: int | None = None
    """Maximum bytes of these tables when full; None: the server's limit."""
    in_plain_text: bool = False
    """Whether the file contains the token itself."""

    def allows(self, one_of: Right, table: str | None) -> bool:
        """Whether it grants one of these rights on a table; None: on any table that it names."""
        if not self.rights & one_of:
            return False
        return table is None or any(fnmatchcase(table, pattern) for pattern in self.tables)

    def allows_on_all(self, one_of: Right) -> bool:
        """Whether it grants one of these rights on all tables, existing or future."""
        return bool(self.rights & one_of) and ALL_TABLES in self.tables

    def has_expired(self, now_s: float) -> bool:
        """Whether it has expired, at a time in seconds since 1970."""
        return self.expires is not None and now_s >= self.expires.timestamp()


class Tokens:
    """The tokens of a file."""

    def __init__(
        self, path: Path, clock: Callable[[], float] = time.time, ticks: Callable[[], float] = time.monotonic
    ) -> None:
        """Read the file.

        Args:
            path: the file.
            clock: seconds since 1970, for expiry.
            ticks: monotonic clock in seconds, for rechecking the file.

        Raises:
            UnusableFileError: the file cannot be used.
        """
        self._path = path
        self._clock = clock
        self._ticks = ticks
        self._file: Watched[tuple[Grant, ...]] = Watched([path], lambda: read_grants(path), if_gone=())
        self._looked_at = ticks()
        exposure = self._exposure()
        if exposure is not None and any(grant.in_plain_text for grant in self._file.value):
            raise UnusableFileError(f"{exposure}, or replace token by token_sha256")
        self._warn(exposure)

    def digest_of(self, token: str) -> bytes | None:
        """The digest of a known token; None for an unknown one.

        It compares with every digest in constant time, so timing reveals nothing.
        """
        self._refresh()
        given = _digest(token)
        known = False
        for grant in self._file.value:
            known |= hmac.compare_digest(grant.digest, given)
        return given if known else None

    def grant(self, digest: bytes) -> Grant | None:
        """The current grant for this digest; None if the token was removed from the file."""
        self._refresh()
        return next((grant for grant in self._file.value if grant.digest == digest), None)

    def has_expired(self, grant: Grant) -> bool:
        """Whether the grant has expired."""
        return grant.has_expired(self._clock())

    def _refresh(self) -> None:
        now = self._ticks()
        if now - self._looked_at >= REFRESH_S:
            self._looked_at = now
            if self._file.refresh():
                # Removed tokens are honored even in a file that others can read.
                self._warn(self._exposure())

    def _exposure(self) -> str | None:
        """Describe how others can access the file, if they can."""
        try:
            return exposure_of(self._path)
        except OSError:  # it was removed
            return None

    def _warn(self, exposure: str | None) -> None:
        if exposure is not None:
            log.warning("%s", exposure)
        if not self._file.value:
            log.warning("%s contains no tokens: all calls are refused", self._path)


def bearer_token(headers: Sequence[str]) -> str | None:
    """The token in the ``authorization`` headers of a call.

    Args:
        headers: their values, such as ``Bearer 8Yp0J...``.

    Returns:
        The token, or None.

    Raises:
        ValueError: the headers are not exactly one bearer token.
    """
    if not headers:
        return None
    scheme, _, token = headers[0].partition(" ")
    if len(headers) > 1 or scheme.lower() != _SCHEME or not token.strip():
        raise ValueError("expected one header 'authorization: Bearer TOKEN', got another format")
    return token.strip()


def read_grants(path: Path) -> tuple[Grant, ...]:
    """Read a token file; if it has no tokens, all calls are refused.

    Raises:
        UnusableFileError: names the file and the problem, never a token.
    """
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise UnusableFileError(f"{path}: expected valid TOML: {_without_content(error)}") from None
    except UnicodeDecodeError:
        raise UnusableFileError(f"{path}: expected TOML in UTF-8, got invalid bytes") from None
    except OSError as error:
        raise UnusableFileError(f"{path}: {_without_content(error)}") from None
    entries = content.get("tokens", [])
    if content.keys() - {"tokens"} or not isinstance(entries, list):
        raise UnusableFileError(f"{path}: expected only [[tokens]]")
    grants = tuple(_grant(f"{path}: tokens[{index}]", entry) for index, entry in enumerate(entries))
    if len({grant.name for grant in grants}) < len(grants):
        raise UnusableFileError(f"{path}: expected unique names, got a duplicate")
    if len({grant.digest for grant in grants}) < len(grants):
        raise UnusableFileError(f"{path}: expected unique tokens, got a duplicate")
    return grants


def _grant(place: str, entry: Any) -> Grant:
    if not isinstance(entry, Mapping):
        raise UnusableFileError(f"{place}: expected a table of keys")
    if unknown := sorted(set(entry) - _KEYS):
        raise UnusableFileError(f"{place}: expected keys among {', '.join(sorted(_KEYS))}, got {unknown[0]!r}")
    name = entry.get("name")
    if not isinstance(name, str) or not name or not name.isprintable():
        raise UnusableFileError(f"{place}: name: expected a string to identify the token in logs")
    return Grant(
        name=name,
        digest=_given_digest(place, entry),
        rights=_rights(place, entry.get("rights")),
        tables=_tables(place, entry.get("tables", [ALL_TABLES])),
        expires=_expires(place, entry.get("expires")),
        max_tables=_most(place, "max_tables", entry.get("max_tables")),
        max_bytes=_most(place, "max_bytes", entry.get("max_bytes")),
        in_plain_text="token" in entry,
    )


def _given_digest(place: str, entry: Mapping[str, Any]) -> bytes:
    token, digest = entry.get("token"), entry.get("token_sha256")
    if (token is None) == (digest is None):
        raise UnusableFileError(f"{place}: expected either token or token_sha256")
    if digest is not None:
        if not isinstance(digest, str) or not _SHA256_HEX.fullmatch(digest):
            raise UnusableFileError(
                f"{place}: token_sha256: expected exactly 64 hexadecimal digits, as printed by "
                "`printf %s TOKEN | sha256sum | cut -d' ' -f1`"
            )
        return bytes.fromhex(digest)
    # Do not show the value: it is probably a secret.
    if not isinstance(token, str) or len(token) < LEAST_LENGTH or not _TOKEN.fullmatch(token):
        raise UnusableFileError(
            f"{place}: token: expected at least "
            f"{LEAST_LENGTH} ASCII characters "
            "without spaces, such as from `openssl rand -hex 32`"
        )
    return _digest(token)


def _rights(place: str, words: Any) -> Right:
    known = {right.words()[0]: right for right in Right}
    if not isinstance(words, list) or not words or not all(isinstance(word, str) and word in known for word in words):
        raise UnusableFileError(f"{place}: rights: expected a list of {', '.join(known)}, got {words!r}")
    rights = Right(0)
    for word in words:
        rights |= known[word]
    return rights


def _tables(place: str, patterns: Any) -> tuple[str, ...]:
    if not isinstance(patterns, list) or not patterns or not all(isinstance(each, str) and each for each in patterns):
        raise UnusableFileError(f"{place}: tables: expected a list of names, with * and ?, got {patterns!r}")
    return tuple(patterns)


def _expires(place: str, moment: Any) -> datetime | None:
    if moment is None:
        return None
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise UnusableFileError(
            f"{place}: expires: expected a time with a time zone, such as 2027-01-01T00:00:00Z, got {moment}"
        )
    return moment


def _most(place: str, key: str, number: Any) -> int | None:
    if number is None or (isinstance(number, int) and not isinstance(number, bool) and number >= 0):
        return number
    raise UnusableFileError(f"{place}: {key}: expected a whole number of at least 0, got {number!r}")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _without_content(error: Exception) -> str:
    """Describe an error without quoting the file, which contains secrets."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    place = re.search(r"\(at [^()]*\)$", str(error))
    return place[0].strip("()") if place else type(error).__name__
