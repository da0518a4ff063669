"""Bearer tokens in a TOML file, with their rights and tables.

    [[tokens]]
    name = "actors"                       # stands for the token in logs and messages
    token = "8Yp0J...at least 16 characters"
    rights = ["write"]                    # of "read", "write" and "admin"; none includes another
    tables = ["cartpole*", "acrobot"]     # names, with * and ? as in file names; left out: all tables
    expires = 2027-01-01T00:00:00Z        # left out: never
    max_tables = 10                       # tables made by it, at once; left out: the server's own bound
    max_bytes = 20_000_000_000            # of these once they are full; left out: the server's own bound

In place of `token` there may be `token_sha256`, its SHA-256 in hexadecimal: then the file itself gives nobody access.
The file is read again when it changes. If it has no tokens, or is gone, nobody may call. In memory there are hashes
only, which are compared in constant time.
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

from replay_proto.access.watched import UnusableFileError, Watched, exposure_of

log = logging.getLogger(__name__)

REFRESH_S: Final = 1.0
"""A change of the file is noticed after this many seconds at the latest."""
LEAST_LENGTH: Final = 16
"""Characters of a token: fewer could be guessed."""
ALL_TABLES: Final = "*"
"""Among the tables of a token: it is for all, those that there will be included."""
_SCHEME: Final = "bearer"
_TOKEN: Final = re.compile(r"[!-~]+")
_SHA256_HEX: Final = re.compile(r"[0-9a-fA-F]{64}")
_KEYS: Final = frozenset({"name", "token", "token_sha256", "rights", "tables", "expires", "max_tables", "max_bytes"})


class Right(Flag):
    """What a token allows. No right includes another."""

    READ = auto()
    """See rows and figures: Sample, Read, Learn, ListTables, Stats."""
    WRITE = auto()
    """Change rows: Insert, Write, UpdatePriorities."""
    ADMIN = auto()
    """Change tables as a whole: CreateTable, ResetTable, DropTable."""

    @classmethod
    def any(cls) -> Right:
        """All of them, for what any of them allows."""
        return cls.READ | cls.WRITE | cls.ADMIN

    def words(self) -> list[str]:
        """As the file has them."""
        return [str(right.name).lower() for right in self]


@dataclass(frozen=True)
class Grant:
    """What one token allows."""

    name: str
    """Stands for the token wherever it would be shown."""
    digest: bytes = field(repr=False)
    """SHA-256 of the token."""
    rights: Right
    """What may be done,"""
    tables: tuple[str, ...] = (ALL_TABLES,)
    """and with which tables: names with * and ?."""
    expires: datetime | None = None
    """Until when; None: without end."""
    max_tables: int | None = None
    """Tables made by it, at once; None: as many as the server takes."""
    max_bytes: int | None = None
    """Bytes of these once they are full; None: as many as the server takes."""
    in_plain_text: bool = False
    """Whether the file has the token itself."""

    def allows(self, one_of: Right, table: str | None) -> bool:
        """Whether it gives one of these rights on a table; None: on whichever tables it names."""
        if not self.rights & one_of:
            return False
        return table is None or any(fnmatchcase(table, pattern) for pattern in self.tables)

    def allows_on_all(self, one_of: Right) -> bool:
        """Whether it gives one of these rights on all tables, whether or not there are any."""
        return bool(self.rights & one_of) and ALL_TABLES in self.tables

    def has_expired(self, now_s: float) -> bool:
        """Whether its time is over, at this many seconds since 1970."""
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
            ticks: seconds that never go back, for looking at the file again.

        Raises:
            UnusableFileError: if it cannot be used.
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
        """The digest under which a token is known; None if it is not.

        It compares with all of them, each in constant time, so that its duration tells nothing.
        """
        self._refresh()
        given = _digest(token)
        known = False
        for grant in self._file.value:
            known |= hmac.compare_digest(grant.digest, given)
        return given if known else None

    def grant(self, digest: bytes) -> Grant | None:
        """What the token of this digest allows now; None if it is in the file no more."""
        self._refresh()
        return next((grant for grant in self._file.value if grant.digest == digest), None)

    def has_expired(self, grant: Grant) -> bool:
        """Whether its time is over."""
        return grant.has_expired(self._clock())

    def _refresh(self) -> None:
        now = self._ticks()
        if now - self._looked_at >= REFRESH_S:
            self._looked_at = now
            if self._file.refresh():
                # A file that takes tokens away is taken at its word, whoever can read it.
                self._warn(self._exposure())

    def _exposure(self) -> str | None:
        """How the file is open to others, if it is."""
        try:
            return exposure_of(self._path)
        except OSError:  # it is gone
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
        The token; None if there is none.

    Raises:
        ValueError: if there is something else than one bearer token.
    """
    if not headers:
        return None
    scheme, _, token = headers[0].partition(" ")
    if len(headers) > 1 or scheme.lower() != _SCHEME or not token.strip():
        raise ValueError("expected one header 'authorization: Bearer TOKEN', got another format")
    return token.strip()


def read_grants(path: Path) -> tuple[Grant, ...]:
    """Read a file of tokens; without any, nobody may call.

    Raises:
        UnusableFileError: names the file and what is wrong; never a token.
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
    # What came is not shown: it is meant to be secret.
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
    """What went wrong, without the file's text, which has secrets in it."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    place = re.search(r"\(at [^()]*\)$", str(error))
    return place[0].strip("()") if place else type(error).__name__
