"""Starts, supervises and restarts the actors of a run as actors of Ray."""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from replay_client.security import TOKEN_VARIABLE

from replay_agent.processes.actor_pool import (
    FIRST_BACKOFF_S,
    MAX_FAILED_STARTS,
    SHORT_LIFE_S,
    STOP_TIMEOUT_S,
    ActorsFailError,
)
from replay_agent.processes.own_access import find_access
from replay_agent.ray.placement import Placement, PlacementError
from replay_agent.ray.replay_map import NAMESPACE, map_name
from replay_agent.settings.actor_settings import ActorSettings

log = logging.getLogger(__name__)


class RemoteActor:
    """An actor of the run, in a Ray process."""

    def __init__(self, settings: ActorSettings, access: Path, service: str) -> None:
        """Read the run's token on this node, and look up the servers' current addresses.

        Raises:
            OSError: the token cannot be read.
        """
        os.environ[TOKEN_VARIABLE] = find_access(access).token
        servers = ray.get(ray.get_actor(map_name(service), NAMESPACE).addresses.remote())
        self._settings = settings.model_copy(update={"server": ",".join(servers)})
        self._stop = threading.Event()

    def ready(self) -> None:
        """Do nothing: the reply shows that Ray has placed the actor."""

    def act(self) -> None:
        """Act until the run is over."""
        import torch

        from replay_agent.distributed.acting_run import FAILURES, run_actor

        torch.set_num_threads(1)
        try:
            run_actor(self._settings, self._stop)
        except FAILURES as error:
            raise RuntimeError(str(error)) from None  # not all client errors can be pickled

    def stop(self) -> None:
        """Stop acting."""
        self._stop.set()


@dataclass
class _Slot:
    """A slot of the pool and its actor."""

    number: int
    actor: Any = None
    placed: Any = None
    """pending call that ends when Ray has placed the actor; None afterwards"""
    acting: Any = None
    """pending call that runs until the actor ends"""
    began_at: float = 0.0
    failed_starts: int = 0
    start_at: float = 0.0


class RayActorPool:
    """Keeps ``count`` actors running on the nodes of the cluster. The actors end when this process ends."""

    def __init__(
        self,
        count: int,
        service: str,
        access: Path,
        *,
        reconnect_timeout_s: float,
        cpus: float,
        placement_timeout_s: float,
    ) -> None:
        """Start the actors, but do not wait until Ray has placed them.

        Args:
            count: number of actors.
            service: name of the run and of its replay servers.
            access: directory with the run's token, shared by all nodes.
            reconnect_timeout_s: seconds that actors wait for unreachable replay servers.
            cpus: CPUs that each actor reserves.
            placement_timeout_s: seconds to wait for free resources at the start.
        """
        self._service, self._access = service, access
        self._reconnect_timeout_s = reconnect_timeout_s
        self._cpus = cpus
        self._placement: Placement | None = Placement(count, "actors", {"CPU": cpus}, placement_timeout_s)
        self._slots = [_Slot(number) for number in range(count)]
        self.restarts = 0
        """Restarts of dead actors so far."""
        for slot in self._slots:
            self._start(slot)

    def supervise(self) -> None:
        """Let newly placed actors act, and restart dead actors.

        Raises:
            ActorsFailError: initial actors were not placed in time, or an actor repeatedly failed to start.
        """
        for slot in self._slots:
            try:
                if slot.placed is not None:
                    self._look_for_place(slot)
                elif slot.acting is not None and ray.wait([slot.acting], timeout=0)[0]:
                    ray.get(slot.acting)
                    self._note_end(slot, "the run is over", failed=False)
                elif slot.actor is None and time.monotonic() >= slot.start_at:
                    self.restarts += 1
                    self._start(slot)
            except RayTaskError as error:
                self._note_end(slot, str(error.cause), failed=True)
            except RayActorError as error:
                self._note_end(slot, str(error), failed=isinstance(error.__cause__, OSError))
        self._expect_places()

    def close(self) -> None:
        """Stop all actors."""
        acting = [slot.acting for slot in self._slots if slot.acting is not None]
        for slot in self._slots:
            if slot.acting is not None:
                slot.actor.stop.remote()
        if acting:
            ray.wait(acting, num_returns=len(acting), timeout=STOP_TIMEOUT_S)
        for slot in self._slots:
            if slot.actor is not None:
                ray.kill(slot.actor, no_restart=True)

    def _start(self, slot: _Slot) -> None:
        settings = ActorSettings(
            run=self._service,
            reconnect_timeout_s=self._reconnect_timeout_s,
            name=f"actor-{slot.number}",
        )
        options = {"num_cpus": self._cpus, "max_concurrency": 2, "scheduling_strategy": "SPREAD"}
        slot.actor = ray.remote(RemoteActor).options(**options).remote(settings, self._access, self._service)
        slot.placed, slot.acting = slot.actor.ready.remote(), None
        slot.began_at = time.monotonic()

    def _look_for_place(self, slot: _Slot) -> None:
        if ray.wait([slot.placed], timeout=0)[0]:
            ray.get(slot.placed)
            slot.placed, slot.began_at = None, time.monotonic()
            slot.acting = slot.actor.act.remote()

    def _expect_places(self) -> None:
        """Raise if initial actors cannot be placed in time. Restarted actors may wait for nodes to come back."""
        waiting = sum(slot.placed is not None for slot in self._slots)
        if not waiting:
            self._placement = None
        if self._placement is not None:
            try:
                self._placement.check(waiting)
            except PlacementError as error:
                raise ActorsFailError(str(error)) from None

    def _note_end(self, slot: _Slot, reason: str, *, failed: bool) -> None:
        lived_s = time.monotonic() - slot.began_at
        failed_to_start = failed and lived_s < SHORT_LIFE_S
        slot.failed_starts = slot.failed_starts + 1 if failed_to_start else 0
        log.warning("actor %d ended after %.0f s: %s", slot.number, lived_s, reason)
        ray.kill(slot.actor, no_restart=True)
        slot.actor = slot.placed = slot.acting = None
        if slot.failed_starts >= MAX_FAILED_STARTS:
            raise ActorsFailError(
                f"an actor failed {slot.failed_starts} times within {SHORT_LIFE_S:.0f} s of its start: {reason}"
            )
        slot.start_at = time.monotonic() + (FIRST_BACKOFF_S * 2**slot.failed_starts if failed_to_start else 0.0)
