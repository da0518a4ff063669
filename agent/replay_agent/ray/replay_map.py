"""A Ray actor that keeps the shard map of a service up to date. It is the only writer of the map.

The actor stores nothing, so it can be restarted: the map is on the servers, and each keeper knows its shard's id.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import RayActorError
from replay_client import ReplayClient, ReplayError, Tls
from replay_client.results.shards import ShardMap

from replay_agent.processes.own_access import find_access
from replay_agent.ray.keeper import KeeperReport
from replay_agent.ray.map_changes import update_map

NAMESPACE: Final = "replay"
"""Ray namespace of the actors, in which other jobs find them by name."""


def map_name(service: str) -> str:
    """Return the name of the actor that keeps the shard map of a service."""
    return f"{service}/map"


log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 0.5
ASK_S: Final = 2.0
"""Time limit for keepers and servers, which answer within milliseconds."""


class ReplayMap:
    """Keeps the shard map of a service up to date; see the module's docstring."""

    def __init__(self, access: Path, keepers: Sequence[Any], lost_after_s: float) -> None:
        """Start watching the keepers, given their handles.

        ``access`` is the directory of the token's files, and ``lost_after_s`` that of `service.start`.

        Raises:
            OSError: the service's token cannot be read on this node.
        """
        self._access = access
        self._lost_after_s = lost_after_s
        self._token = find_access(access).token
        self._tls = Tls.from_environment()
        self._keepers = dict(enumerate(keepers))
        self._reports: dict[int, KeeperReport] = {}
        self._map: ShardMap | None = None
        self._away_since: dict[int, float] = {}
        self._client: ReplayClient | None = None
        threading.Thread(target=self._keep, name="replay-map", daemon=True).start()

    def access(self) -> Path:
        """Return the directory of the token's files."""
        return self._access

    def addresses(self) -> list[str]:
        """Return the addresses of all shards that are neither lost nor retired.

        The list is empty while the service is not ready. A client needs only one of the addresses.
        """
        return [] if self._map is None else [shard.address for shard in self._map.in_use]

    def failures(self) -> dict[int, str]:
        """Return why servers ended, keyed by keeper number. Servers that are ready again are left out."""
        return {number: report.failure for number, report in self._reports.items() if report.failure is not None}

    def _keep(self) -> None:
        while True:
            try:
                self._look()
            except ReplayError as error:
                log.warning("the shard map is polled again: %s", error)
            except Exception:
                log.exception("the shard map is polled again")
            time.sleep(LOOK_EVERY_S)

    def _look(self) -> None:
        self._reports = self._ask_keepers()
        ready = {number: report for number, report in self._reports.items() if report.address is not None}
        if not ready:
            return
        client = self._client_of(sorted({str(report.address) for report in ready.values()}))
        shards = client.shards.map()
        if shards is None:
            if len(ready) < len(self._keepers):
                return  # The first map must have all shards.
            shards = client.shards.set(client.address.split(","))
        new = [number for number, report in ready.items() if report.shard_id is None]
        empty = {number for number in new if self._knows_no_map(str(ready[number].address))}
        expired = self._expired(shards, ready)
        self._map = update_map(shards, ready, empty, expired, keepers=self._keepers, operations=client.shards)

    def _ask_keepers(self) -> dict[int, KeeperReport]:
        """Ask all keepers at the same time; leave out those that do not answer."""
        asked = {keeper.report.remote(): number for number, keeper in self._keepers.items()}
        answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ASK_S) if asked else ([], [])
        reports = {}
        for ref in answered:
            try:
                reports[asked[ref]] = ray.get(ref)
            except RayActorError as error:
                log.debug("keeper %d is away: %s", asked[ref], error)
        return reports

    def _client_of(self, addresses: list[str]) -> ReplayClient:
        joined = ",".join(addresses)
        if self._client is None or self._client.address != joined:
            if self._client is not None:
                self._client.close()
            self._client = ReplayClient(
                joined, token=self._token, tls=self._tls, timeout_s=ASK_S, wait_for_server_s=ASK_S
            )
        return self._client

    def _knows_no_map(self, address: str) -> bool:
        with ReplayClient(address, token=self._token, tls=self._tls, timeout_s=ASK_S) as client:
            return client.shards.map() is None

    def _expired(self, shards: ShardMap, ready: dict[int, KeeperReport]) -> set[int]:
        """Return the ids of shards that have been without a ready server for ``lost_after_s``."""
        there = {report.address for report in ready.values()} | {report.shard_id for report in ready.values()}
        away = [shard.id for shard in shards.in_use if shard.address not in there and shard.id not in there]
        now = time.monotonic()
        self._away_since = {shard_id: self._away_since.get(shard_id, now) for shard_id in away}
        return {each for each, since in self._away_since.items() if now - since >= self._lost_after_s}
