"""Starts replay servers as detached actors of Ray, and finds and stops them by their name."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from replay_client import ReplayClient, Tls

from replay_agent.processes.own_access import create_access, find_access, remove_access
from replay_agent.ray.keeper import STOP_TIMEOUT_S, ShardKeeper
from replay_agent.ray.placement import Placement, PlacementError, wait_for_room
from replay_agent.ray.replay_map import NAMESPACE, ReplayMap, map_name

__all__ = ["PlacementError", "ServiceError", "connect", "start", "stop"]

START_TIMEOUT_S: Final = 300.0
"""Time limit for the start of the servers. The first start compiles kernels."""
_POLL_S: Final = 0.1
_SERVER_RESOURCE: Final = "replay"
"""If nodes have this resource, servers run only on them."""


class ServiceError(RuntimeError):
    """The replay servers could not be started or found; the message says why."""


class NodeKeeper(ShardKeeper):
    """A keeper on any node. Its server listens on the node's address, unless another one is given."""

    def __init__(self, folder: Path, host: str | None, access: Path, config: Path | None) -> None:
        tokens = find_access(access).tokens_file
        super().__init__(folder, host or ray.util.get_node_ip_address(), tokens, config)


def start(
    name: str,
    *,
    shards: int = 3,
    folder: str | Path,
    data_dir: str | Path | None = None,
    server_config: str | Path | None = None,
    lost_after_s: float = 60.0,
    placement_timeout_s: float = 60.0,
    host: str | None = None,
) -> ReplayClient:
    """Start replay servers, or find running servers of this name, and return a client.

    Until `stop` is called, Ray restarts servers that die, even after this program has ended. The servers of a dead node
    are restarted on other nodes. The program must have called `ray.init`.

    Args:
        name: name of the service in the cluster.
        shards: number of servers.
        folder: directory that all nodes share, for the token and, by default, the tables.
        data_dir: directory for the tables on each node, such as a local disk; None: ``folder``. If a node dies and
            other nodes cannot read its tables, the rows are lost, and an empty shard replaces the shard of that node.
        server_config: TOML file with settings of `replay-server`. All nodes must be able to read it.
        lost_after_s: seconds after which an unreachable shard is given up.
        placement_timeout_s: seconds to wait for free resources. Each server reserves one CPU and, if nodes of the
            cluster have the custom resource ``replay``, one unit of it.
        host: address that servers listen on; None: their node's address.

    Raises:
        PlacementError: the resources are not free; the message names the one that is short.
        ServiceError: a server does not start.
        OSError: the folder cannot be used.
    """
    root = Path(folder).resolve()
    tables = Path(data_dir).resolve() if data_dir else root
    config = Path(server_config).resolve() if server_config else None
    access = root / "access"
    if _find_map(name) is None:
        create_access(access)
    custom = {_SERVER_RESOURCE: 1.0} if _SERVER_RESOURCE in ray.cluster_resources() else {}
    each = {"CPU": 1.0, **custom}
    wait_for_room({resource: amount * shards for resource, amount in each.items()}, placement_timeout_s)
    try:
        keepers = [
            _detached(NodeKeeper, f"{name}/{shard}", num_cpus=1, resources=custom).remote(
                tables / shard, host, access, config
            )
            for shard in (f"shard-{number}" for number in range(shards))
        ]
        replay_map = _detached(ReplayMap, map_name(name), num_cpus=0).remote(access, keepers, lost_after_s)
        _place(keepers, each, placement_timeout_s)
        _wait_until_ready(replay_map)
    except BaseException:
        stop(name)
        raise
    return connect(name)


def connect(name: str, **options: Any) -> ReplayClient:
    """Return a client of the servers that `start` or `replay-train --ray` has started under a name.

    Args:
        name: name of the service; for `replay-train`, the name of the run.
        **options: options of `ReplayClient`, such as ``timeout_s``. By default, the environment variables
            REPLAY_TLS_... determine ``tls``.

    Raises:
        ServiceError: there is no such service, it is not ready, or its token cannot be read.
    """
    replay_map = _find_map(name)
    if replay_map is None:
        raise ServiceError(f"expected the name of a running replay service, got {name!r}")
    access: Path = ray.get(replay_map.access.remote())
    try:
        token = find_access(access).token
    except OSError as error:
        raise ServiceError(f"expected the folder of service {name!r}, which all nodes share: {error}") from error
    options.setdefault("tls", Tls.from_environment())
    return ReplayClient(",".join(_wait_until_ready(replay_map)), token=token, **options)


def stop(name: str) -> None:
    """Stop the servers of a service; their tables remain on disk. Does nothing if there is no such service."""
    found = [each["name"] for each in ray.util.list_named_actors(all_namespaces=True) if each["namespace"] == NAMESPACE]
    actors = {each: ray.get_actor(each, NAMESPACE) for each in found if each.startswith(f"{name}/")}
    replay_map = actors.pop(map_name(name), None)
    access: Path | None = None
    if replay_map is not None:  # Stop it first: otherwise, it would give up the stopped servers.
        with suppress(RayError):
            access = ray.get(replay_map.access.remote(), timeout=STOP_TIMEOUT_S)
        ray.kill(replay_map, no_restart=True)
    stopping = [keeper.stop.remote() for keeper in actors.values()]
    if stopping:
        ray.wait(stopping, num_returns=len(stopping), timeout=STOP_TIMEOUT_S)
    for keeper in actors.values():
        ray.kill(keeper, no_restart=True)
    if access is not None:
        remove_access(access)


def _find_map(name: str) -> Any:
    """Return the actor that keeps the shard map of a service; None: there is none."""
    try:
        return ray.get_actor(map_name(name), NAMESPACE)
    except ValueError:
        return None


def _place(keepers: Sequence[Any], each: Mapping[str, float], timeout_s: float) -> None:
    """Wait until all keepers are placed. Otherwise, kill those that are not, because `stop` would wait for them."""
    reports = [keeper.report.remote() for keeper in keepers]
    try:
        Placement(reports, "servers", each, timeout_s).wait()
    except BaseException:
        for keeper, report in zip(keepers, reports, strict=True):
            if not ray.wait([report], timeout=0)[0]:
                ray.kill(keeper, no_restart=True)
        raise


def _detached(kind: type[Any], name: str, **reserved: Any) -> Any:
    """Return an actor class whose ``remote`` finds the detached actor of this name, or starts it if there is none."""
    return ray.remote(kind).options(
        name=name,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,  # whenever it dies
        scheduling_strategy="SPREAD",
        **reserved,
    )


def _wait_until_ready(replay_map: Any) -> list[str]:
    """Wait for the shard map, and return its addresses. Raises `ServiceError` if a server does not start."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            addresses: list[str] = ray.get(replay_map.addresses.remote())
            if addresses:
                return addresses
            failures: dict[int, str] = ray.get(replay_map.failures.remote())
        except (RayActorError, RayTaskError) as error:
            raise ServiceError(f"the replay service does not start: {error}") from error
        if failures:
            raise ServiceError("\n".join(f"server {number}: {failure}" for number, failure in failures.items()))
        if time.monotonic() >= deadline:
            raise ServiceError(f"the replay servers were not ready after {START_TIMEOUT_S:.0f} s")
        time.sleep(_POLL_S)
