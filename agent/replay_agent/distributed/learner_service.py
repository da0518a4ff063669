"""The learner's service: actors join, report their episodes and fetch new weights."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import grpc
from replay_proto.v1 import learner_pb2
from safetensors.torch import save
from torch import Tensor

from replay_agent.acting.seeds import RunSeeds
from replay_agent.distributed.actors import MAX_NAME_LENGTH, ActorEpsilons, JoinLog, Reports
from replay_agent.distributed.learner_access import RefusedError
from replay_agent.distributed.learner_server import Method

# Actors that are ahead pause for this long before they report again.
PAUSE_MS = 20
WEIGHT_BYTES_PER_S = 128 << 20
"""Maximum rate of the weights sent to all actors together. Sending costs at most a third of the trainer's time."""
BURST_S = 1.0
"""Seconds by which sending may run ahead of that rate, because actors often request weights simultaneously."""


class Guidance(NamedTuple):
    """Instructions for an actor."""

    granted_steps: int
    """environment steps until the next report; 0 pauses the actor"""
    epsilon: float
    """probability of a random action, for actors that have no constant epsilon of their own"""


class PublishedWeights:
    """The newest weights. Thread-safe.

    Weights are copied from the device and serialized when an actor first requests them, in the thread that answers the
    request. So publishing never waits for the device, and versions that no actor requests are never serialized. Sending
    costs the trainer about 2 ms per MB, so the rate is limited.
    """

    def __init__(self, weights: Mapping[str, Tensor], clock: Callable[[], float] = time.monotonic) -> None:
        """Publish version 1; the clock returns seconds."""
        self._newest = _Version(1, weights)
        self._clock = clock
        self._lock = threading.Lock()
        self._paid_until = clock()

    @property
    def version(self) -> int:
        """The newest version."""
        return self._newest.number

    def publish(self, weights: Mapping[str, Tensor]) -> None:
        """Publish a new version; copies the weights on their device. Call from one thread only."""
        self._newest = _Version(self.version + 1, weights)

    def newer_than(self, version: int) -> tuple[int, bytes]:
        """Return the newest version and its data.

        The data is empty if ``version`` is the newest, or if the rate limit is reached.
        """
        newest = self._newest
        if version == newest.number:
            return newest.number, b""
        data = newest.data()
        return newest.number, data if self._may_send(len(data)) else b""

    def _may_send(self, size: int) -> bool:
        """If the rate limit allows ``size`` bytes now, count them and return True."""
        with self._lock:
            now = self._clock()
            if self._paid_until > now + BURST_S:
                return False
            self._paid_until = max(now, self._paid_until) + size / WEIGHT_BYTES_PER_S
            return True


class _Version:
    """A copy of the weights from the time when they were published."""

    def __init__(self, number: int, weights: Mapping[str, Tensor]) -> None:
        self.number = number
        self._weights = {name: tensor.detach().clone() for name, tensor in weights.items()}
        self._lock = threading.Lock()
        self._data: bytes | None = None

    def data(self) -> bytes:
        """Return the weights in safetensors format. The first call waits for the device."""
        with self._lock:
            if self._data is None:
                self._data = save({name: tensor.cpu().contiguous() for name, tensor in self._weights.items()})
            return self._data


class LearnerService:
    """Handles the RPCs; they may raise `RefusedError` and `FieldError`. Thread-safe."""

    def __init__(
        self,
        task: learner_pb2.JoinResponse,
        seeds: RunSeeds,
        weights: PublishedWeights,
        guide: Callable[[], Guidance],
        epsilons: Sequence[float] = (),
    ) -> None:
        """Serve one run.

        Args:
            task: the task of all actors, from `make_task`.
            seeds: seeds of the actors.
            weights: the weights to serve.
            guide: called for each report; returns how many steps the actor may take, and the current epsilon. Must be
                thread-safe.
            epsilons: constant epsilons to assign to the actors. If empty, all actors use the epsilon from ``guide``.
        """
        self.reports = Reports()
        self.run_id = str(uuid.uuid4())
        self._task = task
        self._seeds = seeds
        self._weights = weights
        self._guide = guide
        self._epsilons = ActorEpsilons(epsilons) if epsilons else None
        self._lock = threading.Lock()
        self._joins = JoinLog()
        self.actors_joined = 0
        """Number of actors that have joined so far."""
        self._is_finished = threading.Event()

    @property
    def table(self) -> str:
        """Name of the table that actors write to."""
        return self._task.table

    def methods(self) -> Mapping[str, Method]:
        """Return the methods for `LearnerServer`."""
        return {
            "Join": Method(learner_pb2.JoinRequest, self.join),
            "Report": Method(learner_pb2.ReportRequest, self.report),
            "GetWeights": Method(learner_pb2.GetWeightsRequest, self.get_weights, in_thread=True),
        }

    def finish(self) -> None:
        """From now on, tell actors that the run is over."""
        self._is_finished.set()

    def join(self, request: learner_pb2.JoinRequest) -> learner_pb2.JoinResponse:
        """Assign a number, a seed and the task to the actor, and an epsilon if actors have constant ones."""
        with self._lock:
            self.actors_joined += 1
            actor_id = self.actors_joined
        self._joins.note(actor_id, request.name)
        assignment = learner_pb2.JoinResponse(run_id=self.run_id, actor_id=actor_id, seed=self._seeds.actor(actor_id))
        assignment.MergeFrom(self._task)
        if self._epsilons is not None:
            assignment.epsilon = self._epsilons.assign(actor_id, request.name[:MAX_NAME_LENGTH])
        return assignment

    def report(self, request: learner_pb2.ReportRequest) -> learner_pb2.ReportResponse:
        """Record a report and return instructions."""
        self._check_run(request.run_id)
        self.reports.add(request, self.actors_joined)
        if self._epsilons is not None:
            self._epsilons.hear(request.actor_id)
        guidance = self._guide()
        return learner_pb2.ReportResponse(
            granted_steps=guidance.granted_steps,
            pause_ms=PAUSE_MS,
            epsilon=guidance.epsilon,
            weights_version=self._weights.version,
            finished=self._is_finished.is_set(),
        )

    def get_weights(self, request: learner_pb2.GetWeightsRequest) -> learner_pb2.GetWeightsResponse:
        """Return the newest weights, unless the caller has them or the rate limit is reached.

        The call may wait for the device.
        """
        self._check_run(request.run_id)
        version, data = self._weights.newer_than(request.have_version)
        return learner_pb2.GetWeightsResponse(version=version, safetensors=data)

    def _check_run(self, run_id: str) -> None:
        if run_id != self.run_id:
            raise RefusedError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"this is run {self.run_id}, not {run_id[:MAX_NAME_LENGTH]!r}: join again",
            )
