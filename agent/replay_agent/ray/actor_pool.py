"""Starts, supervises and restarts the actors of a run as actors of Ray."""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
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
from replay_agent.ray.weights_relay import WeightsRelay
from replay_agent.settings.actor_settings import ActorSettings

log = logging.getLogger(__name__)

RELAY_START_S: Final = 60.0
"""Time limit for a relay's process to start."""


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

    def node(self) -> str:
        """Return the id of the node that Ray chose."""
        node_id: str = ray.get_runtime_context().get_node_id()
        return node_id

    def act(self, relay: Any) -> None:
        """Act until the run is over; fetch weights from the node's relay, if it can be reached."""
        import torch

        from replay_agent.distributed.acting_run import FAILURES, run_actor

        torch.set_num_threads(1)
        try:
            address = ray.get(relay.address.remote(), timeout=RELAY_START_S)
        except (RayError, GetTimeoutError) as error:
            log.warning("weights come from the learner, without a relay: %s", error)
            address = None
        try:
            run_actor(self._settings, self._stop, address)
        except FAILURES as error:
            raise RuntimeError(str(error)) from None  # not all client errors can be pickled

    def stop(self) -> None:
        """Stop acting."""
        self._stop.set()


class NodeRelay(WeightsRelay):
    """The relay of a node."""

    def __init__(self, learner: str, access: Path) -> None:
        super().__init__(learner, find_access(access))


@dataclass
class _Slot:
    """A slot of the pool and its actor."""

    number: int
    actor: Any = None
    placed: Any = None
    """pending call that returns the actor's node; None after its reply"""
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
        learner: str,
        access: Path,
        *,
        reconnect_timeout_s: float,
        cpus: float,
        placement_timeout_s: float,
    ) -> None:
        """Start the actors, but do not wait until Ray has placed them.

        Args:
            count: number of actors.
            service: name of the replay servers.
            learner: HOST:PORT of the learner's service.
            access: directory with the run's token, shared by all nodes.
            reconnect_timeout_s: seconds that actors wait for unreachable replay servers.
            cpus: CPUs that each actor reserves.
            placement_timeout_s: seconds to wait for free resources at the start.
        """
        self._service, self._learner, self._access = service, learner, access
        self._reconnect_timeout_s = reconnect_timeout_s
        self._cpus = cpus
        self._placement: Placement | None = Placement(count, "actors", {"CPU": cpus}, placement_timeout_s)
        self._relays: dict[str, Any] = {}
        self._slots = [_Slot(number) for number in range(count)]
        self.restarts = 0
        """Restarts of dead actors so far."""
        for slot in self._slots:
            self._start(slot)

    @property
    def nodes(self) -> list[str]:
        """Ids of nodes that have a relay."""
        return list(self._relays)

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
        """Stop all actors and relays."""
        acting = [slot.acting for slot in self._slots if slot.acting is not None]
        for slot in self._slots:
            if slot.acting is not None:
                slot.actor.stop.remote()
        if acting:
            ray.wait(acting, num_returns=len(acting), timeout=STOP_TIMEOUT_S)
        for actor in [*(slot.actor for slot in self._slots), *self._relays.values()]:
            if actor is not None:
                ray.kill(actor, no_restart=True)

    def _start(self, slot: _Slot) -> None:
        settings = ActorSettings(
            learner=self._learner,
            reconnect_timeout_s=self._reconnect_timeout_s,
            name=f"actor-{slot.number}",
        )
        options = {"num_cpus": self._cpus, "max_concurrency": 2, "scheduling_strategy": "SPREAD"}
        slot.actor = ray.remote(RemoteActor).options(**options).remote(settings, self._access, self._service)
        slot.placed, slot.acting = slot.actor.node.remote(), None
        slot.began_at = time.monotonic()

    def _look_for_place(self, slot: _Slot) -> None:
        if ray.wait([slot.placed], timeout=0)[0]:
            node = ray.get(slot.placed)
            slot.placed, slot.began_at = None, time.monotonic()
            slot.acting = slot.actor.act.remote(self._relay(node))

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

    def _relay(self, node: str) -> Any:
        """Return the relay of a node. The relay is started for the node's first actor."""
        if node not in self._relays:
            here = NodeAffinitySchedulingStrategy(node, soft=False)
            remote = ray.remote(NodeRelay).options(num_cpus=0, scheduling_strategy=here)
            self._relays[node] = remote.remote(self._learner, self._access)
        return self._relays[node]

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
