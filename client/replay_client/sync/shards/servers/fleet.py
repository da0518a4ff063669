"""The servers of one service, found from the addresses of some of them.

fleet = Fleet(sessions)
shards = fleet.find()               # the newest shard map; the first client of several servers creates it
fleet.session(shards.in_use[0].address)
fleet.change(new)                   # raises ShardsChangedError if another client was faster
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, get_args

from replay_client._operations import server as operations
from replay_client._shards.divisible import check_divisible
from replay_client._shards.keys import MOST_ID
from replay_client._shards.map_clashes import newest_map, refuse_clash
from replay_client._transport.address import address_order
from replay_client._transport.session import Session
from replay_client.errors import (
    InvalidArgumentError,
    PermissionDeniedError,
    ReplayError,
    ShardsChangedError,
)
from replay_client.results.shards import LostRows, ServerShards, Shard, ShardMap, ShardState
from replay_client.sync.shards.servers.asking import ASK_S, AWAY, ask_all
from replay_client.sync.shards.servers.reports import Reports, rows_lost_with

_SPREADING_S: Final = 1.0
"""Seconds to wait while another client sends the first map to all servers."""
_POLL_S: Final = 0.05


class Fleet:
    """See the module. Thread-safe."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        """``sessions`` are those of the addresses that the user gave. No server is contacted yet."""
        self.sessions = {session.options.address: session for session in sessions}
        """Links by address, to all servers found so far."""
        self.seeds = tuple(self.sessions)
        """The given addresses."""
        self.reports = Reports()
        """What was heard of shards, and not yet told the other servers."""

    def session(self, address: str) -> Session:
        """Return the session to a server."""
        found = self.sessions.get(address)
        return found or self.sessions.setdefault(address, next(iter(self.sessions.values())).to(address))

    def sessions_of(self, shards: ShardMap) -> dict[int, Session]:
        """Return the sessions to all servers in use, by the ids of their shards."""
        return {shard.id: self.session(shard.address) for shard in shards.in_use}

    def moved(self, earlier: str, address: str) -> None:
        """Change the address of a server; its session stays the same object."""
        session = self.sessions.get(earlier)
        if session is not None and session.options.address == earlier:
            session.move(address)
            kept = {known: other for known, other in self.sessions.items() if known not in (earlier, address)}
            self.sessions = {**kept, address: session}
            self.seeds = tuple(address if seed == earlier else seed for seed in self.seeds)

    def find(self) -> ShardMap:
        """Return the newest map that any server has. If no server has a map, create one with the given addresses.

        Raises:
            ServerUnavailableError: no server is reachable, or there is no map yet and some server is unreachable.
            PermissionDeniedError: there is no map, and this client may not create it.
            InvalidArgumentError: the addresses belong to different services, an address is not in the map, two of them
                lead to one server, a server has lost the map, or the servers have different versions. Nothing was
                changed.
        """
        deadline = time.monotonic() + _SPREADING_S
        while True:
            found = self._ask()
            _check_servers(found)
            newest = _newest(found)
            if newest is None:
                return self._create(sorted(found, key=address_order))
            lacking = self._lacking(newest, found)
            if not lacking:
                self._bring_up_to_date(newest, found)
                return newest
            if newest.version > 1 or time.monotonic() >= deadline:
                raise InvalidArgumentError.of_field(
                    "address",
                    f"a server with the tables of shard {lacking[0].id}; if they are gone, run "
                    f"`replay shards lost {lacking[0].id}` and then `replay shards set` with all addresses",
                    f"{lacking[0].address}, which has no shard map",
                )
            time.sleep(_POLL_S)

    def current(self) -> ShardMap | None:
        """Return the newest map that any server has, if any.

        Raises:
            ServerUnavailableError: no server is reachable, even after retries. If any answers, no call is retried.
        """
        try:
            return _newest(self._ask(at_once=True))
        except AWAY:
            return _newest(self._ask())

    def change(self, new: ShardMap) -> None:
        """Send a new map to its servers, in order of address. The first server detects concurrent changes.

        Raises:
            ShardsChangedError: the map has changed meanwhile.
            PermissionDeniedError: the token lacks the right ``admin`` on all tables.
            ServerUnavailableError: no server is reachable. If only some are unreachable, they get the map later.
            InvalidArgumentError: a server has a map from someone who could not reach the first one.
        """
        unreachable: ReplayError | None = None
        is_first = True
        for address in sorted((shard.address for shard in new.in_use), key=address_order):
            try:
                self._send(new, address, is_first=is_first)
                is_first = False
            except AWAY as error:
                unreachable = error
        if is_first and unreachable is not None:
            raise unreachable

    def _send(self, new: ShardMap, address: str, *, is_first: bool) -> None:
        """Send a new map to one server, unless another client has sent it."""
        connection = self.session(address).connection
        current = connection.run(operations.get_shards(timeout_s=ASK_S)).map
        if is_first and current is not None and current.version >= new.version:
            raise ShardsChangedError(
                f"the shard map of {address} has version {current.version} already, and the new one "
                f"{new.version}: read it again, and repeat the change"
            )
        if current is not None:
            refuse_clash(("the change", new), (address, current))
        if current is None or current.version < new.version:
            try:
                connection.run(operations.set_shards(new, 0 if current is None else current.version))
            except ShardsChangedError:
                if is_first:
                    raise
                self._send(new, address, is_first=False)

    def set_addresses(self, addresses: Sequence[str]) -> ShardMap:
        """Make these the servers of the service. Known servers keep their ids; new servers get new ids.

        Raises:
            InvalidArgumentError: a server in use is missing, a table cannot be distributed over them, or a new server
                still has rows of a shard that was given up.
        """
        for address in addresses:
            self.session(address)
        found = self._ask(addresses)
        _check_servers(found)
        current = _newest(found)
        if current is None:
            return self._create(sorted(addresses, key=address_order))
        missing = [shard for shard in current.in_use if shard.address not in addresses]
        if missing:
            expected = f"{missing[0].address} also; `replay shards lost {missing[0].id}` if it is gone for good"
            raise InvalidArgumentError.of_field("addresses", expected, ",".join(addresses))
        known = {shard.address for shard in current.in_use}
        new = [address for address in sorted(addresses, key=address_order) if address not in known]
        first_id = current.shards[-1].id + 1
        if first_id + len(new) - 1 > MOST_ID:
            raise InvalidArgumentError.of_field("addresses", f"fewer new servers: ids end at {MOST_ID}", str(len(new)))
        self._check_tables(addresses, formerly=[address for address in new if found[address].map is not None])
        added = tuple(Shard(first_id + number, address, "active") for number, address in enumerate(new))
        changed = current.with_shards((*current.shards, *added))
        self.change(changed)
        return changed

    def mark(self, shard_id: int, state: ShardState) -> ShardMap:
        """Change the state of a shard.

        Raises:
            InvalidArgumentError: there is no such state; the shard does not exist, or is already lost or retired; or it
                is the only one in use and would be lost or retired.
        """
        if state not in get_args(ShardState):
            raise InvalidArgumentError.of_field("state", ", ".join(map(repr, get_args(ShardState))), repr(state))
        current = self._with(shard_id)
        if state in ("lost", "retired") and len(current.in_use) == 1:
            raise InvalidArgumentError.of_field("shard", "not the only one; add another server first", str(shard_id))
        lost: tuple[LostRows, ...] = ()
        if state == "lost":
            self.reports.send()
            lost = rows_lost_with(shard_id, self.sessions_of(current))
        shards = tuple(
            replace(each, state=state, lost_rows=lost) if each.id == shard_id else each for each in current.shards
        )
        changed = current.with_shards(shards)
        self.change(changed)
        return changed

    def move(self, shard_id: int, address: str) -> ShardMap:
        """Change the address of a shard, whose server now runs elsewhere with the same tables.

        Raises:
            InvalidArgumentError: the shard does not exist, is lost or retired, or the address is in use or leads to a
                server without the map of this service, or to that of another shard, even one that was given up.
            ServerUnavailableError: the server at the new address is away.
        """
        current = self._with(shard_id)
        self._check_target(current, shard_id, address)
        shards = tuple(replace(each, address=address) if each.id == shard_id else each for each in current.shards)
        changed = current.with_shards(shards)
        self.change(changed)
        return changed

    def _check_target(self, current: ShardMap, shard_id: int, address: str) -> None:
        """Check that a server can be that of a shard: it has kept the map of this service, and so its tables.

        Raises:
            InvalidArgumentError: it cannot.
            ServerUnavailableError: it is away.
        """
        found = self.session(address).connection.run(operations.get_shards(timeout_s=ASK_S))
        others = {shard.address: shard.id for shard in current.in_use if shard.id != shard_id}
        alike = [each for each, server in self._ask(at_once=True).items() if server.server_uid == found.server_uid]
        known = {others[each] for each in alike if each in others}
        if found.map is not None:
            known |= _given_up_at(address, current, found.map) | self._first_shards_at(address)
        if found.map is None:
            got = (
                f"{address}, which has no shard map; if the tables are gone, run `replay shards lost {shard_id}` and "
                "then `replay shards set` with all addresses"
            )
        elif found.map.uid != current.uid:
            got = f"{address}, which belongs to another service"
        elif known - {shard_id}:
            got = f"{address}, which is the server of shard {min(known - {shard_id})}"
        else:
            return
        raise InvalidArgumentError.of_field("address", f"the server that has the tables of shard {shard_id}", got)

    def _first_shards_at(self, address: str) -> set[int]:
        """Return the id of a server's shard if it is the first one of a table, which is the only one that says so."""
        tables, _ = self.session(address).connection.run(operations.list_tables())
        return {table.whole_shards[0] for table in tables if table.whole_shards and not table.whole_uid}

    def _with(self, shard_id: int) -> ShardMap:
        """Return the newest map, after checking that this shard is in use.

        Raises:
            InvalidArgumentError: the shard is not in use.
        """
        current = self.current()
        by_id = {} if current is None else {shard.id: shard for shard in current.in_use}
        if current is None or shard_id not in by_id:
            of_service = ", ".join(f"{each.id} at {each.address}" for each in by_id.values())
            expected = f"one of {of_service}" if by_id else "a service with several servers"
            raise InvalidArgumentError.of_field("shard", expected, str(shard_id))
        return current

    def server_uids(self) -> set[bytes]:
        """Return the ids of the reachable servers, which each drew when it started.

        Raises:
            ServerUnavailableError: no server is reachable.
        """
        return {server.server_uid for server in self._ask().values()}

    def _ask(self, addresses: Sequence[str] = (), *, at_once: bool = False) -> dict[str, ServerShards]:
        """Ask servers for their maps, and return the answers of the reachable ones by address.

        The servers are those that the user gave, those at ``addresses``, and those in the newest map that is found. If
        none of them has a map, all servers known from earlier maps are asked, too: those that the user gave may be
        gone. ``at_once``: do not retry servers that refuse connections.
        """
        found: dict[str, ServerShards] = {}
        to_ask, asked = [*self.seeds, *addresses], set[str]()
        failure: ReplayError | None = None
        while to_ask:
            address = to_ask.pop(0)
            if address in asked:
                continue
            asked.add(address)
            connection, question = self.session(address).connection, operations.get_shards(timeout_s=ASK_S)
            try:
                found[address] = connection.ask(question, timeout_s=ASK_S) if at_once else connection.run(question)
            except AWAY as error:
                failure = error
            newest = _newest(found)
            if not to_ask:
                known = self.sessions if newest is None else [shard.address for shard in newest.in_use]
                to_ask = [address for address in known if address not in asked]
        if failure is not None and _newest(found) is None:
            raise failure
        return found

    def _create(self, addresses: Sequence[str]) -> ShardMap:
        """Create the first map, unless another client is faster."""
        self._check_tables(addresses)
        shards = tuple(Shard(number, address, "active") for number, address in enumerate(addresses))
        new = ShardMap.first(shards)
        try:
            self.change(new)
        except ShardsChangedError:
            return self.find()
        except PermissionDeniedError as error:
            error.add_note(
                "the first client of several servers needs this right; or an operator runs "
                f"`replay shards set {','.join(addresses)}`"
            )
            raise
        return new

    def _check_tables(self, addresses: Sequence[str], *, formerly: Sequence[str] = ()) -> None:
        """Check that all tables on these servers can get shards on each of them; skip tables hidden from this client.

        Servers that were ``formerly`` in the map must have no rows: clients have inserted some of them elsewhere, and
        counted the others as lost.

        Raises:
            InvalidArgumentError: a table cannot, or has such rows.
        """
        with suppress(PermissionDeniedError):
            sessions = {number: self.session(address) for number, address in enumerate(addresses)}
            for number, (tables, _) in ask_all(sessions, operations.list_tables).items():
                for table in tables:
                    check_divisible(table, addresses[number])
                    if table.size and addresses[number] in formerly:
                        expected = "new servers without rows of a shard that was given up: use an empty --data-dir"
                        got = f"{addresses[number]} with {table.size:,} rows of table {table.name!r}"
                        raise InvalidArgumentError.of_field("addresses", expected, got)

    def _bring_up_to_date(self, newest: ShardMap, found: dict[str, ServerShards]) -> None:
        """Send the map to servers that were away when it changed, if this client may."""
        in_use = {shard.address for shard in newest.in_use}
        for address, server in found.items():
            if address in in_use and server.map is not None and server.map.version < newest.version:
                with suppress(PermissionDeniedError, ShardsChangedError, *AWAY):
                    self.session(address).connection.run(operations.set_shards(newest, server.map.version))

    def _lacking(self, newest: ShardMap, found: dict[str, ServerShards]) -> list[Shard]:
        """Check that the newest map has the given addresses; return the shards whose servers answered without a map."""
        in_use = {shard.address for shard in newest.in_use}
        ever = {shard.address for shard in newest.shards}
        for address in self.seeds:
            if address not in ever:
                expected = f"one of {', '.join(sorted(in_use))}; `replay shards set` adds a server"
                raise InvalidArgumentError.of_field("address", expected, address)
        return [shard for shard in newest.in_use if shard.address in found and found[shard.address].map is None]


def _given_up_at(address: str, current: ShardMap, kept: ShardMap) -> set[int]:
    """Return the shards that were at an address and were given up, unless the map that its server kept says so.

    Servers that were given up do not get the map that says so.
    """
    in_use = {shard.id for shard in kept.in_use} - {shard.id for shard in current.in_use}
    return {shard.id for shard in current.shards if shard.address == address and shard.id in in_use}


def _check_servers(found: dict[str, ServerShards]) -> None:
    """Check that the addresses lead to different servers of the same version.

    Raises:
        InvalidArgumentError: they do not.
    """
    by_uid: dict[bytes, str] = {}
    for address, server in found.items():
        same = by_uid.setdefault(server.server_uid, address) if server.server_uid else address
        if same != address:
            got = f"{same} and {address}, which are one server"
            raise InvalidArgumentError.of_field("address", "different servers", got)
    if len({server.version for server in found.values()}) > 1:
        versions = ", ".join(f"{address}: {server.version or 'unknown'}" for address, server in found.items())
        raise InvalidArgumentError.of_field("address", "servers of one version", versions)


def _newest(found: dict[str, ServerShards]) -> ShardMap | None:
    """Return the newest of the maps.

    Raises:
        InvalidArgumentError: the maps belong to different services, or the newest was not made from all others.
    """
    maps = {address: server.map for address, server in found.items() if server.map is not None}
    if len({shards.uid for shards in maps.values()}) > 1:
        raise InvalidArgumentError.of_field("address", "servers of one service", ", ".join(maps) + ", of several")
    return newest_map(maps.items())
