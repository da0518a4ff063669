"""What one reader sees of a service with several servers: each table as a whole, and its shards."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from replay_proto.merged_stats import merged_without_quantiles, shards_in_use
from replay_proto.shard_maps import is_made_from
from replay_proto.v1 import replay_pb2

from replay_server.http.histograms import REFRESH_S, mixed_distributions
from replay_server.http.history import Counts, History
from replay_server.http.page_figures import client_figures, table_figures, to_json
from replay_server.http.shards.channels import Channels
from replay_server.http.shards.peer import Peer
from replay_server.http.shards.shard_figures import mass_away, problems, server_figures, shard_lines
from replay_server.storage.shard_map import ShardMapFile
from replay_server.table.figures.clients import Client

log = logging.getLogger(__name__)


class ServiceView:
    """The service as the holder of one token may see it.

    This server asks all servers of the shard map, including itself: it does not know which of them it is.
    """

    def __init__(self, kept: ShardMapFile, channels: Channels) -> None:
        """Ask nobody yet.

        Args:
            kept: this server's shard map.
            channels: connections to the servers.
        """
        self.pages = 0
        """Number of open pages."""
        self.last_open_s = time.monotonic()
        """When the last page was closed."""
        self.is_ready = False
        """Whether there is something to show: a server has answered, all are away, or this one never shared tables."""
        self.tables: dict[str, str] | None = None
        """JSON of the tables by name, sorted; None: this server never shared tables, or no server has answered."""
        self.servers: list[dict[str, Any]] = []
        """Figures of the servers in use, if this server shares tables or did."""
        self.problems: list[str] = []
        """Sentences about servers that are away."""
        self._kept = kept
        self._newest: replay_pb2.ShardMap | None = None
        self._clashing_version = 0
        self._channels = channels
        self._token: str | None = None
        self._peers: dict[int, Peer] = {}  # by the id of the shard
        self._history = History()
        self._uids: dict[str, bytes] = {}  # uid of the whole table, by name
        self._distributions: dict[bytes, tuple[float, dict[str, Any]]] = {}  # by uid, with the time of their making

    @property
    def addresses(self) -> set[str]:
        """Addresses of the servers that are asked."""
        return {peer.address for peer in self._peers.values()}

    def start(self, token: str | None) -> None:
        """Begin to ask, with a token or without one."""
        self._token = token
        self.ask()

    def ask(self) -> None:
        """Ask all servers for new figures, in the background. If there has only ever been one server, ask nobody.

        Of several servers, only one may be left. It is asked, too, because this server may be one of the others.
        """
        shards, peers = self._shards(), dict[int, Peer]()
        if shards is not None and len(shards.shards) > 1:
            peers = {shard.id: self._peer_of(shard) for shard in shards_in_use(shards)}
            for peer in peers.values():
                peer.ask(self._token, shards.uid)
        for gone in {*self._peers.values()} - {*peers.values()}:
            gone.stop()
        self._peers = peers

    def stop(self) -> None:
        """Stop asking, and forget the token and what the servers have answered, but keep the history."""
        for peer in self._peers.values():
            peer.stop()
        self._peers, self._token, self.is_ready = {}, None, False
        self.tables, self.servers, self.problems = None, [], []
        self.last_open_s = time.monotonic()

    def points(self, name: str) -> dict[str, list[float]] | None:
        """Return the recorded rates of a table; None unless the table was shown as a whole."""
        return self._history.points(self._uids[name]) if name in self._uids else None

    async def update(self, clients_of: Callable[[str], Iterable[Client]]) -> float:
        """Compute all figures from the newest answers. After each table, other calls can run.

        Args:
            clients_of: returns the clients of this server's shard of a table, by the table's name.

        Returns:
            The CPU time in seconds.
        """
        began = time.thread_time()
        shards, peers = self._shards(), self._peers
        in_use = [] if shards is None else [shard for shard in shards_in_use(shards) if shard.id in peers]
        self.servers, self.problems = server_figures(in_use, peers), problems(in_use, peers)
        has_answers = any(peer.answer is not None for peer in peers.values())
        self.is_ready = has_answers or all(peer.away for peer in peers.values())
        if shards is None or not has_answers:
            self.tables, self._uids = None, {}
            return time.thread_time() - began
        parts = self._parts()
        self._record(parts)
        spent_s, made = time.thread_time() - began, {}
        for name, found in sorted(parts.items()):
            began = time.thread_time()
            made[name] = to_json(
                {
                    **self._whole(found, shards, peers),
                    "points": self._history.points(self._uids[name], 1),
                    **self._distribution(self._uids[name], list(found.values())),
                    **client_figures(clients_of(name)),
                }
            )
            spent_s += time.thread_time() - began
            await asyncio.sleep(0)
        self.tables = made
        return spent_s

    def _peer_of(self, shard: replay_pb2.Shard) -> Peer:
        known = self._peers.get(shard.id)
        return known if known is not None and known.address == shard.address else Peer(self._channels, shard.address)

    def _shards(self) -> replay_pb2.ShardMap | None:
        """Return the newest map that any server has or had."""
        answers = (peer.answer for peer in self._peers.values() if peer.answer is not None)
        maps = (self._newest, self._kept.to_proto(), *(answer.shards for answer in answers))
        known = [each for each in maps if each is not None]
        self._newest = max(known, key=lambda each: each.version, default=None)
        if self._newest is not None:
            self._tell_clash(self._newest, known)
        return self._newest

    def _tell_clash(self, newest: replay_pb2.ShardMap, known: Iterable[replay_pb2.ShardMap]) -> None:
        """Log, once for each version, that a server has a map which the newest was not made from."""
        clashing = not all(is_made_from(newest, each) for each in known)
        if clashing and newest.version != self._clashing_version:
            log.error("the servers of this service have different shard maps; version %d is the newest", newest.version)
            self._clashing_version = newest.version

    def _parts(self) -> dict[str, dict[int, replay_pb2.TableStats]]:
        """Return the shards of each table, by name and id."""
        parts: dict[str, dict[int, replay_pb2.TableStats]] = {}
        for shard_id, peer in self._peers.items():
            for name, part in peer.tables.items() if peer.answer is not None else ():
                parts.setdefault(name, {})[shard_id] = part
        return parts

    def _record(self, parts: dict[str, dict[int, replay_pb2.TableStats]]) -> None:
        self._uids = {
            name: min(part.table.config.whole_uid or part.table.uid for part in found.values())
            for name, found in parts.items()
        }
        rates = {
            self._uids[name]: _sum(self._peers[shard_id].rates.get(part.table.uid) for shard_id, part in found.items())
            for name, found in parts.items()
        }
        self._history.tick(rates)
        self._distributions = {uid: made for uid, made in self._distributions.items() if uid in rates}

    def _distribution(self, uid: bytes, parts: list[replay_pb2.TableStats]) -> dict[str, Any]:
        now = time.monotonic()
        known = self._distributions.get(uid)
        if known is None or now - known[0] >= REFRESH_S:
            known = self._distributions[uid] = now, mixed_distributions(parts)
        return known[1]

    @staticmethod
    def _whole(
        parts: dict[int, replay_pb2.TableStats], shards: replay_pb2.ShardMap, peers: dict[int, Peer]
    ) -> dict[str, Any]:
        whole = merged_without_quantiles(parts, shards)
        figures = table_figures(whole)
        away = mass_away(whole, peers)
        sentences = [f"{100 * away:.0f} % of the mass is away"] if away else []
        return {
            **figures,
            "waits": [*sentences, *figures["waits"]],
            "shards": shard_lines(whole, parts, shards, peers),
        }


def _sum(rates: Iterable[Counts | None]) -> Counts | None:
    known = [rate for rate in rates if rate is not None]
    return Counts(*map(sum, zip(*known, strict=True))) if known else None
