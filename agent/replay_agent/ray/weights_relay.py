"""Fetches a learner's weights once for all actors of a node. Does not import Ray; `actor_pool` makes it a Ray actor."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Final

import grpc
from replay_client import Tls
from replay_client.security import Access
from replay_proto.v1 import learner_pb2, learner_pb2_grpc

from replay_agent.distributed.learner_access import LearnerAccess, RefusedError
from replay_agent.distributed.learner_client import LEARNER_TLS_PREFIX, UNLIMITED_MESSAGES
from replay_agent.distributed.learner_server import LearnerServer, Method
from replay_agent.processes.own_access import OwnAccess

MAX_AGE_S: Final = 0.2
"""If its weights are older than this, the relay asks the learner again before it serves them."""
LEARNER_TIMEOUT_S: Final = 4.0
"""Time limit for the learner's reply. After a timeout, actors ask the learner directly."""


class RelayedWeights:
    """The newest weights of a run. A request for weights of another run replaces them. Thread-safe."""

    table: Final = "*"
    """Actors need the right to write to all tables; the run's own token grants it."""

    def __init__(self, learner: str, token: str) -> None:
        """Open a channel to the learner, at ``host:port``.

        Raises:
            InvalidArgumentError: a certificate file cannot be read.
        """
        self._learner = learner
        self._access = Access(token, Tls.from_environment(LEARNER_TLS_PREFIX))
        self._open()
        self._lock = threading.Lock()
        self._run_id = ""
        self._newest = learner_pb2.GetWeightsResponse()
        self._fetched_at = 0.0

    def methods(self) -> Mapping[str, Method]:
        """Return the methods for `LearnerServer`."""
        return {"GetWeights": Method(learner_pb2.GetWeightsRequest, self.get_weights, in_thread=True)}

    def get_weights(self, request: learner_pb2.GetWeightsRequest) -> learner_pb2.GetWeightsResponse:
        """Return the newest weights unless the caller has them.

        Raises:
            RefusedError: the learner refuses the request, or cannot be reached.
        """
        with self._lock:  # One thread asks the learner; the others wait for it.
            is_old = time.monotonic() - self._fetched_at > MAX_AGE_S
            if request.run_id != self._run_id or self._newest.version <= request.have_version or is_old:
                self._fetch(request.run_id)
            newest = self._newest
        if newest.version <= request.have_version:
            return learner_pb2.GetWeightsResponse(version=newest.version)
        return newest

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def _open(self) -> None:
        self._channel = self._access.open_channel(self._learner, UNLIMITED_MESSAGES)
        self._stub = learner_pb2_grpc.LearnerServiceStub(self._channel)

    def _fetch(self, run_id: str) -> None:
        if self._access.is_renewed():
            self._channel.close()
            self._open()
        have = self._newest.version if run_id == self._run_id else 0
        request = learner_pb2.GetWeightsRequest(run_id=run_id, have_version=have)
        try:
            found = self._stub.GetWeights(request, timeout=LEARNER_TIMEOUT_S, metadata=self._access.metadata())
        except grpc.RpcError as error:
            raise RefusedError(error.code(), str(error.details())) from error
        self._fetched_at = time.monotonic()
        if found.safetensors:
            self._run_id, self._newest = run_id, found
        elif run_id != self._run_id:  # the learner has sent too much recently; ask for the same version again
            self._run_id, self._newest = run_id, learner_pb2.GetWeightsResponse()


class WeightsRelay:
    """Serves `RelayedWeights` to the actors of its machine."""

    def __init__(self, learner: str, access: OwnAccess) -> None:
        """Listen on a free port of the loopback interface.

        Raises:
            OSError: no port can be bound.
        """
        self._weights = RelayedWeights(learner, access.token)
        self._server = LearnerServer(self._weights, "127.0.0.1", 0, LearnerAccess(tokens=access.tokens_file))

    def address(self) -> str:
        """Return HOST:PORT for actors."""
        return self._server.address

    def close(self) -> None:
        """Stop serving."""
        self._server.close()
        self._weights.close()
