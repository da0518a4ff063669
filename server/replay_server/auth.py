"""Callers, identified by token, and their rights.

    caller = authenticator.caller_of(metadata, peer)    # once per call, stream or connection
    caller.check(Right.WRITE, "cartpole")               # before each operation

Without a tokens file, every caller has all rights. With one, a token is refused once it is removed or expires, and its
waiting calls and open streams end. A call that waits also ends if its token loses the right that the call requires.

Clients of the same caller share budgets. If the server requires tokens, a caller is identified by the name of its
token, whatever its address. Otherwise, a caller is a host: an IPv4 address, an IPv6 /64 network (the usual size for one
customer), or this machine, for clients that connect over loopback or the local socket. Processes on one machine cannot
be distinguished reliably.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from replay_proto.access.tokens import REFRESH_S, Right, TokenEntry, Tokens, bearer_token

from replay_server import errors
from replay_server.errors import RequestError

_LOOK_S: Final = REFRESH_S / 2
End = Callable[[RequestError], None]
"""Ends a call with a refusal; may be called several times."""


class Revocations:
    """Periodically checks the tokens and rights of waiting calls and open streams."""

    def __init__(self) -> None:
        self._checks: dict[object, tuple[Callable[[], None], End]] = {}
        self._next_look: asyncio.TimerHandle | None = None

    @contextmanager
    def ending(self, check: Callable[[], None], end: End) -> Iterator[None]:
        """Call ``end`` if ``check`` refuses inside the block, within at most `REFRESH_S` plus one second."""
        call = object()
        self._checks[call] = check, end
        if self._next_look is None:
            self._look_later()
        try:
            yield
        finally:
            del self._checks[call]

    def _look_later(self) -> None:
        self._next_look = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def _look(self) -> None:
        self._next_look = None
        if not self._checks:
            return
        self._look_later()
        for check, end in list(self._checks.values()):
            try:
                check()
            except RequestError as refusal:
                end(refusal)


THIS_HOST: Final = "this host"
_NETWORK_BITS: Final = 64


def of_peer(peer: str) -> str:
    """Identity of a peer with an address in gRPC's format.

    Examples are ``ipv4:10.0.0.7:52100``, ``ipv6:%5B2001:db8::1%5D:52100`` and ``unix:``.
    """
    kind, _, address = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return THIS_HOST
    return of_host(unquote(address).rpartition(":")[0].strip("[]"))


@lru_cache(maxsize=1024)
def of_host(address: str) -> str:
    """Identity of a host by its address, without a port; an empty address is this machine."""
    try:
        found = ip_address(address)
    except ValueError:
        return THIS_HOST if not address else f"host {address}"
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if found.is_loopback:
        return THIS_HOST
    if isinstance(found, IPv6Address):
        network = int(found) >> (128 - _NETWORK_BITS) << (128 - _NETWORK_BITS)
        return f"host {IPv6Address(network)}/{_NETWORK_BITS}"
    return f"host {found}"


_HEADER = "authorization"


class Caller:
    """A caller with all rights, as on a server without tokens. `TokenHolder` is for servers with tokens.

    All methods raise RequestError (UNAUTHENTICATED) once the caller's token is no longer valid.
    """

    def __init__(self, identity: str = "") -> None:
        """Create a caller; callers with the same ``identity`` share budgets (see the module)."""
        self.identity = identity

    def token(self) -> TokenEntry | None:
        """Return the entry of the caller's token. None means all rights."""
        return None

    def check_valid(self) -> None:
        """Require a valid token and, after `requiring`, the right."""
        self.token()

    def requiring(self, check: Callable[[], None]) -> Caller:
        """Return this caller for one call, with the check of the right that the call requires."""
        return self

    def may(self, one_of: Right, table: str | None = None) -> bool:
        """Whether the caller has one of these rights on ``table`` or, if that is None, on at least one table."""
        entry = self.token()
        return entry is None or entry.allows(one_of, table)

    def check(self, one_of: Right, table: str | None = None) -> None:
        """Require one of these rights on ``table`` or, if that is None, on at least one table."""
        entry = self.token()
        if entry is not None and not entry.allows(one_of, table):
            on = "any table" if table is None else f"table {table!r}"
            raise errors.permission_denied(entry.name, one_of.words(), on, table or "")

    def may_on_all(self, one_of: Right) -> bool:
        """Whether the caller has one of these rights on all tables, including future ones."""
        entry = self.token()
        return entry is None or entry.allows_on_all(one_of)

    def check_on_all(self, one_of: Right, what: str = "all tables") -> None:
        """Require one of these rights on all tables, including future ones. A refusal mentions ``what``."""
        entry = self.token()
        if entry is not None and not entry.allows_on_all(one_of):
            raise errors.permission_denied(entry.name, one_of.words(), what)

    def check_each(self, one_of: Right, tables: Iterable[str], what: str) -> None:
        """Require one of these rights on each of these tables; refusals name ``what`` instead of the tables."""
        entry = self.token()
        if entry is not None and not all(entry.allows(one_of, table) for table in tables):
            raise errors.permission_denied(entry.name, one_of.words(), what)

    def while_valid(self, end: End) -> AbstractContextManager[None]:
        """Inside the block, call ``end`` if the caller's token becomes invalid."""
        return nullcontext()


class TokenHolder(Caller):
    """A caller with a known token."""

    def __init__(self, tokens: Tokens, digest: bytes, revocations: Revocations) -> None:
        """Remember the token's digest, but not the token; UNAUTHENTICATED if it expired or was removed."""
        self._tokens = tokens
        self._digest = digest
        self._revocations = revocations
        self._check_right: Callable[[], None] | None = None
        super().__init__(f"token {self.token().name}")

    def token(self) -> TokenEntry:
        """Return the entry of the token."""
        return _valid_entry(self._tokens, self._digest)

    def check_valid(self) -> None:
        """See `Caller`."""
        self.token()
        if self._check_right is not None:
            self._check_right()

    def requiring(self, check: Callable[[], None]) -> Caller:
        """See `Caller`."""
        holder = copy(self)
        holder._check_right = check
        return holder

    def while_valid(self, end: End) -> AbstractContextManager[None]:
        """See `Caller`."""
        return self._revocations.ending(self.check_valid, end)


def _valid_entry(tokens: Tokens, digest: bytes) -> TokenEntry:
    entry = tokens.entry(digest)
    if entry is None:
        raise errors.unauthenticated("the token of this call is no longer valid")
    if tokens.has_expired(entry):
        raise errors.unauthenticated(f"the token {entry.name!r} expired at {entry.expires}")
    return entry


class Authenticator:
    """Identifies callers."""

    def __init__(self, tokens: Path | None = None) -> None:
        """Read the tokens file; see `replay_proto.access.tokens`. If it is None, every caller has all rights."""
        self._tokens = None if tokens is None else Tokens(tokens)
        self._revocations = Revocations()

    def caller_of(self, metadata: Iterable[tuple[str, str | bytes]], peer: str = "") -> Caller:
        """Identify a caller by the token in ``metadata`` or, without a tokens file, by its address ``peer``.

        The address has gRPC's format, see `of_peer`.

        Raises:
            RequestError: UNAUTHENTICATED if a token is required, but is missing, unknown or expired.
        """
        if self._tokens is None:
            return Caller(of_peer(peer))
        token = self.token_of(metadata)
        if token is None:
            raise errors.unauthenticated("this server requires a token, and the call has none")
        digest = self._tokens.digest_of(token)
        if digest is None:
            raise errors.unauthenticated("the token of this call is unknown to this server")
        return TokenHolder(self._tokens, digest, self._revocations)

    def token_of(self, metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
        """Return the token in ``metadata``; None if there is none, or no token is required."""
        if self._tokens is None:
            return None
        try:
            return bearer_token([str(value) for name, value in metadata if name == _HEADER])
        except ValueError as error:
            raise errors.unauthenticated(str(error)) from None
