"""The caller of a call or stream: found by its token, and asked before anything is done for it.

    caller = authenticator.caller(token)          # once per call, stream or connection
    caller.check(Right.WRITE, "cartpole")         # before each thing that is done

Without a file of tokens everybody may do everything. With one, a token that is taken out of the file, or expires, is
refused from then on, on open streams too.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from replay_proto.access.tokens import Grant, Right, Tokens, bearer_token

from replay_server import errors

_HEADER = "authorization"


class Caller(Protocol):
    """Who calls."""

    def may(self, one_of: Right, table: str | None = None) -> bool:
        """Whether it has one of these rights on a table; None: on any table at all.

        Raises:
            RequestError: UNAUTHENTICATED, if its token is not valid any more.
        """
        ...

    def check(self, one_of: Right, table: str | None = None) -> None:
        """Refuse it unless it has one of these rights on a table; None: on any table at all.

        Raises:
            RequestError: PERMISSION_DENIED, or UNAUTHENTICATED if its token is not valid any more.
        """
        ...


    def may_on_all(self, one_of: Right) -> bool:
        """Whether it has one of these rights on all tables, whether or not there are any.

        Raises:
            RequestError: UNAUTHENTICATED, if its token is not valid any more.
        """
        ...

    def check_on_all(self, one_of: Right) -> None:
        """Refuse it unless it has one of these rights on all tables, whether or not there are any.

        Raises:
            RequestError: PERMISSION_DENIED, or UNAUTHENTICATED if its token is not valid any more.
        """
        ...


class Anyone:
    """Whoever calls a server without tokens: may do everything."""

    def may(self, one_of: Right, table: str | None = None) -> bool:
        """Yes."""
        return True

    def check(self, one_of: Right, table: str | None = None) -> None:
        """Nothing is refused."""

    def may_on_all(self, one_of: Right) -> bool:
        """Yes."""
        return True

    def check_on_all(self, one_of: Right) -> None:
        """Nothing is refused."""


class TokenHolder:
    """Somebody who came with a token that is known."""

    def __init__(self, tokens: Tokens, digest: bytes) -> None:
        """Remember by which token; the token itself is not kept."""
        self._tokens = tokens
        self._digest = digest

    def check_valid(self) -> None:
        """Refuse a token whose time is over, or that was taken away.

        Raises:
            RequestError: UNAUTHENTICATED.
        """
        self._grant()

    def may(self, one_of: Right, table: str | None = None) -> bool:
        """See `Caller`."""
        return self._grant().allows(one_of, table)

    def check(self, one_of: Right, table: str | None = None) -> None:
        """See `Caller`."""
        grant = self._grant()
        if not grant.allows(one_of, table):
            on = "any table" if table is None else f"table {table!r}"
            raise errors.permission_denied(grant.name, one_of.words(), on, table or "")

    def may_on_all(self, one_of: Right) -> bool:
        """See `Caller`."""
        return self._grant().allows_on_all(one_of)

    def check_on_all(self, one_of: Right) -> None:
        """See `Caller`."""
        grant = self._grant()
        if not grant.allows_on_all(one_of):
            raise errors.permission_denied(grant.name, one_of.words(), "all tables")

    def _grant(self) -> Grant:
        grant = self._tokens.grant(self._digest)
        if grant is None:
            raise errors.unauthenticated("the token of this call is valid no more")
        if self._tokens.has_expired(grant):
            raise errors.unauthenticated(f"the token {grant.name!r} expired at {grant.expires}")
        return grant


class Authenticator:
    """Finds out who calls."""

    def __init__(self, tokens: Path | None = None) -> None:
        """Read the tokens.

        Args:
            tokens: their file, see `replay_proto.access.tokens`; None: whoever calls may do everything.

        Raises:
            UnusableFileError: if the file cannot be used.
        """
        self._tokens = None if tokens is None else Tokens(tokens)

    def caller(self, token: str | None) -> Caller:
        """The caller who sent this token.

        Raises:
            RequestError: UNAUTHENTICATED, if a token is wanted and this one is missing, wrong or expired.
        """
        if self._tokens is None:
            return Anyone()
        if token is None:
            raise errors.unauthenticated("this server wants a token, and the call has none")
        digest = self._tokens.digest_of(token)
        if digest is None:
            raise errors.unauthenticated("the token of this call is not one of this server's")
        caller = TokenHolder(self._tokens, digest)
        caller.check_valid()
        return caller

    def caller_of(self, metadata: Iterable[tuple[str, str | bytes]]) -> Caller:
        """The caller who sent this metadata with its call.

        Raises:
            RequestError: UNAUTHENTICATED, see `caller`.
        """
        if self._tokens is None:
            return Anyone()
        try:
            return self.caller(bearer_token([str(value) for name, value in metadata if name == _HEADER]))
        except ValueError as error:
            raise errors.unauthenticated(str(error)) from None
