"""Keeps the actors of a run running on the nodes of a Ray cluster."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import Final

import ray
from ray.exceptions import RayError, RayTaskError
from replay_client.security import TOKEN_VARIABLE

from replay_agent.processes.actor_pool import STOP_TIMEOUT_S, ActorPool, ActorsFailError
from replay_agent.processes.own_access import find_access
from replay_agent.ray.placement import Placement, PlacementError
from replay_agent.ray.replay_map import NAMESPACE, map_name
from replay_agent.settings.train_settings import TrainSettings

log = logging.getLogger(__name__)

_SUPERVISE_S: Final = 0.25


class RemoteActor:
    """Keeps a process with an actor of the run running on its node. Ray restarts this process if it dies."""

    def __init__(self, settings: TrainSettings, run: str, access: Path, logs: Path, number: int) -> None:
        """Store the arguments, as for `RayActorPool`."""
        self._settings, self._run, self._access, self._logs, self._number = settings, run, access, logs, number
        self._stopped = threading.Event()

    def act(self) -> None:
        """Act until `stop` is called.

        Raises:
            ActorsFailError: the actor repeatedly failed to start.
            OSError: the token cannot be read on this node.
        """
        # The actor finds the same modules as this process, such as those of the user's job.
        paths = {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"}
        environment = {**os.environ, **paths, TOKEN_VARIABLE: find_access(self._access).token}
        timeout_s = self._settings.reconnect_timeout_s
        pool = ActorPool(1, self._servers, self._run, self._logs, timeout_s, environment, first=self._number)
        try:
            while not self._stopped.wait(_SUPERVISE_S):
                pool.supervise()
        finally:
            pool.close()

    def stop(self) -> None:
        """Stop acting."""
        self._stopped.set()

    def _servers(self) -> str:
        """Return the present addresses of the servers; after node failures, they differ from earlier ones."""
        while True:
            try:
                found: list[str] = ray.get(ray.get_actor(map_name(self._run), NAMESPACE).addresses.remote())
                if found:
                    return ",".join(found)
            except RayError as error:
                log.warning("the addresses of the servers are polled again: %s", error)
            time.sleep(_SUPERVISE_S)


class RayActorPool:
    """Keeps actors running on the nodes of the cluster. They end when this process ends."""

    def __init__(self, settings: TrainSettings, run: str, access: Path, logs: Path) -> None:
        """Start the actors of a ``run``, but do not wait until Ray has placed them.

        All nodes share the directories ``access``, with the run's token, and ``logs``, for the actors' logs.
        """
        kind = ray.remote(RemoteActor).options(
            num_cpus=settings.actor_cpus,
            scheduling_strategy="SPREAD",
            max_concurrency=2,
            max_restarts=-1,
            max_task_retries=-1,
        )
        self._actors = [kind.remote(settings, run, access, logs, number) for number in range(settings.actors)]
        ready = [actor.__ray_ready__.remote() for actor in self._actors]
        self._acting = [actor.act.remote() for actor in self._actors]
        self._placement = Placement(ready, "actors", {"CPU": settings.actor_cpus}, settings.placement_timeout_s)

    def supervise(self) -> None:
        """See `Pool.supervise`."""
        try:
            self._placement.check()
            ray.get(ray.wait(self._acting, timeout=0)[0])
        except PlacementError as error:
            raise ActorsFailError(str(error)) from None
        except RayError as error:
            raise ActorsFailError(str(error.cause if isinstance(error, RayTaskError) else error)) from None

    def close(self) -> None:
        """See `Pool.close`."""
        for actor in self._actors:
            actor.stop.remote()
        placed = len(self._actors) - len(self._placement.waiting)
        if placed:
            ray.wait(self._acting, num_returns=placed, timeout=STOP_TIMEOUT_S)
        for actor in self._actors:
            ray.kill(actor, no_restart=True)
