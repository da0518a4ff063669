"""The caller of a call or stream: found by its token, and asked before anything is done for it.

    caller = authenticator.caller(token)          # once per call, stream or connection
    caller.check(Right.WRITE, "cartpole")         # before each thing that is done

Without a file of tokens everybody may do everything. With one, a token that is taken out of the file, or expires, is
refused from then on: calls that wait and open streams are ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

from replay_proto.access.tokens import Grant, Right, Tokens, bearer_token

from replay_server import errors
from replay_server.auth.identity import of_peer, of_token
from replay_server.auth.quota import Quota
from replay_server.auth.revocation import End, Revocations

_HEADER = "authorization"


class Caller(Protocol):
    """Who calls."""

    @property
    def identity(self) -> str:
        """By which it is told from others where all share what there is; see `replay_server.auth.identity`."""
        ...

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

    def check_on_all(self, one_of: Right, what: str = "all tables") -> None:
        """Refuse it unless it has one of these rights on all tables, whether or not there are any.

        Args:
            one_of: the rights.
            what: what the refusal says that it has them not on.

        Raises:
            RequestError: PERMISSION_DENIED, or UNAUTHENTICATED if its token is not valid any more.
        """
        ...

    def check_each(self, one_of: Right, tables: Iterable[str], what: str) -> None:
        """Refuse it unless it has one of these rights on each of these tables; the refusal names ``what`` instead.

        Raises:
            RequestError: PERMISSION_DENIED, or UNAUTHENTICATED if its token is not valid any more.
        """
        ...

    def check_valid(self) -> None:
        """Refuse it if its token is not valid any more.

        Raises:
            RequestError: UNAUTHENTICATED.
        """
        ...

    def quota(self) -> Quota:
        """What the tables that it makes may take.

        Raises:
            RequestError: UNAUTHENTICATED, if its token is not valid any more.
        """
        ...

    def while_valid(self, end: End) -> AbstractContextManager[None]:
        """Have something ended, while it waits, if the caller's token is not valid any more."""
        ...


class Anyone:
    """Whoever calls a server without tokens: may do everything."""

    def __init__(self, identity: str = "") -> None:
        """Remember from where it calls."""
        self.identity = identity

    def may(self, one_of: Right, table: str | None = None) -> bool:
        """Yes."""
        return True

    def check(self, one_of: Right, table: str | None = None) -> None:
        """Nothing is refused."""

    def may_on_all(self, one_of: Right) -> bool:
        """Yes."""
        return True

    def check_on_all(self, one_of: Right, what: str = "all tables") -> None:
        """Nothing is refused."""

    def check_each(self, one_of: Right, tables: Iterable[str], what: str) -> None:
        """Nothing is refused."""

    def check_valid(self) -> None:
        """Nothing is refused."""

    def quota(self) -> Quota:
        """As much as the server has."""
        return Quota()

    def while_valid(self, _end: End) -> AbstractContextManager[None]:
        """Nothing is ended."""
        return nullcontext()


class TokenHolder:
    """Somebody who came with a token that is known."""

    def __init__(self, tokens: Tokens, digest: bytes, revocations: Revocations) -> None:
        """Remember by which token; the token itself is not kept.

        Raises:
            RequestError: UNAUTHENTICATED, if its time is over, or it was taken away.
        """
        self._tokens = tokens
        self._digest = digest
        self._revocations = revocations
        self.identity = of_token(self._grant().name)

    def check_valid(self) -> None:
        """See `Caller`."""
        self._grant()

    def quota(self) -> Quota:
        """See `Caller`."""
        grant = self._grant()
        return Quota(grant.name, grant.max_tables, grant.max_bytes)

    def while_valid(self, end: End) -> AbstractContextManager[None]:
        """See `Caller`."""
        return self._revocations.ending(self._digest, end)

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

    def check_on_all(self, one_of: Right, what: str = "all tables") -> None:
        """See `Caller`."""
        grant = self._grant()
        if not grant.allows_on_all(one_of):
            raise errors.permission_denied(grant.name, one_of.words(), what)

    def check_each(self, one_of: Right, tables: Iterable[str], what: str) -> None:
        """See `Caller`."""
        grant = self._grant()
        if not all(grant.allows(one_of, table) for table in tables):
            raise errors.permission_denied(grant.name, one_of.words(), what)

    def _grant(self) -> Grant:
        return _valid_grant(self._tokens, self._digest)


def _valid_grant(tokens: Tokens, digest: bytes) -> Grant:
    """What a token allows.

    Raises:
        RequestError: UNAUTHENTICATED, if its time is over or it was taken away.
    """
    grant = tokens.grant(digest)
    if grant is None:
        raise errors.unauthenticated("the token of this call is no longer valid")
    if tokens.has_expired(grant):
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
        self._revocations = Revocations(self._check)

    def caller(self, token: str | None, peer: str = "") -> Caller:
        """The caller who sent this token, from this peer, as gRPC writes it.

        Raises:
            RequestError: UNAUTHENTICATED, if a token is wanted and this one is missing, wrong or expired.
        """
        if self._tokens is None:
            return Anyone(of_peer(peer))
        if token is None:
            raise errors.unauthenticated("this server requires a token, and the call has none")
        digest = self._tokens.digest_of(token)
        if digest is None:
            raise errors.unauthenticated("the token of this call is unknown to this server")
        return TokenHolder(self._tokens, digest, self._revocations)

    def caller_of(self, metadata: Iterable[tuple[str, str | bytes]], peer: str = "") -> Caller:
        """The caller who sent this metadata with its call, from this peer, as gRPC writes it.

        Raises:
            RequestError: UNAUTHENTICATED, see `caller`.
        """
        if self._tokens is None:
            return Anyone(of_peer(peer))
        try:
            return self.caller(bearer_token([str(value) for name, value in metadata if name == _HEADER]))
        except ValueError as error:
            raise errors.unauthenticated(str(error)) from None

    def _check(self, digest: bytes) -> None:
        if self._tokens is not None:
            _valid_grant(self._tokens, digest)
