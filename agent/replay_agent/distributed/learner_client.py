"""Client of the learner's service, used by actors."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import grpc
from replay_client.security import Access, Tls, Token
from replay_proto.channels import open_channel
from replay_proto.v1 import learner_pb2, learner_pb2_grpc
from safetensors.torch import load
from torch import Tensor

from replay_agent.acting.actor import FinishedEpisode
from replay_agent.distributed.actors import MAX_EPISODES

# Weights of a network can be arbitrarily large.
UNLIMITED_MESSAGES = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
MIN_TIMEOUT_S = 0.01
# Prefix of the environment variables for TLS with the learner; see `replay_client.security`.
LEARNER_TLS_PREFIX = "REPLAY_LEARNER_TLS"
# Token for the learner, if it differs from the replay server's.
LEARNER_TOKEN_VARIABLE = "REPLAY_LEARNER_TOKEN"
_REFUSALS = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
# The learner is unreachable, or it stopped during a call, which gRPC reports as CANCELLED or INTERNAL.
_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL)
# A relay on the same machine answers quickly, unless it waits for the learner.
RELAY_TIMEOUT_S = 5.0
# Pause between retries.
RETRY_PAUSE_S = 0.1
# Interval between checks for a stop request.
STOP_LOOK_S = 0.2

Request = TypeVar("Request")
Response = TypeVar("Response")


class LearnerUnavailableError(ConnectionError):
    """The learner could not be reached within the time limit."""


class LearnerRefusesError(PermissionError):
    """The learner refuses the token or the actor's report."""


class RunChangedError(Exception):
    """The learner was restarted: join again."""


class ToldToStopError(Exception):
    """The actor was told to stop while it waited for the learner."""


class LearnerClient:
    """Joins a learner, reports to it and fetches its weights. Calls retry while the learner is unreachable.

    Every call may raise `LearnerUnavailableError`, `LearnerRefusesError` or `ToldToStopError`. All calls except `join`
    may also raise `RunChangedError`.
    """

    def __init__(
        self,
        address: str,
        timeout_s: float,
        token: Token | None = None,
        tls: Tls | None = None,
        stop: threading.Event | None = None,
        weights_relay: str | None = None,
    ) -> None:
        """Open a channel; the learner may start later.

        Args:
            address: ``host:port``.
            timeout_s: time limit of a call in seconds, including retries.
            token: for a learner that requires one.
            tls: certificates for TLS; None: plain text.
            stop: once set, calls raise `ToldToStopError` instead of waiting.
            weights_relay: ``host:port`` of a relay on this machine to fetch weights from. If the relay does not answer,
                or is None, weights come from the learner.

        Raises:
            InvalidArgumentError: the token is malformed, or a certificate file cannot be read.
        """
        self._address = address
        self._timeout_s = timeout_s
        self._stop = stop or threading.Event()
        self._access = Access(token, tls)
        self._open()
        self._relay_channel = None if weights_relay is None else open_channel(weights_relay, None, UNLIMITED_MESSAGES)

    def join(self, name: str) -> learner_pb2.JoinResponse:
        """Join the run; the learner's log shows ``name``."""
        return self._call(lambda stub: stub.Join, learner_pb2.JoinRequest(name=name))

    def report(
        self, assignment: learner_pb2.JoinResponse, episodes: Sequence[FinishedEpisode]
    ) -> learner_pb2.ReportResponse:
        """Report finished episodes, and get instructions for the next steps.

        A long list is split into several reports; only the reply to the last one is returned.
        """
        *full, last = range(0, max(len(episodes), 1), MAX_EPISODES)
        for start in full:
            self._report(assignment, episodes[start : start + MAX_EPISODES])
        return self._report(assignment, episodes[last:])

    def newer_weights(
        self, assignment: learner_pb2.JoinResponse, have_version: int
    ) -> tuple[int, dict[str, Tensor]] | None:
        """Fetch weights newer than ``have_version``. Return None if the learner sends none."""
        request = learner_pb2.GetWeightsRequest(have_version=have_version, run_id=assignment.run_id)
        response = self._relayed(request) or self._call(lambda stub: stub.GetWeights, request)
        return (response.version, load(response.safetensors)) if response.safetensors else None

    def close(self) -> None:
        """Close the channels."""
        self._channel.close()
        if self._relay_channel is not None:
            self._relay_channel.close()

    def _relayed(self, request: learner_pb2.GetWeightsRequest) -> learner_pb2.GetWeightsResponse | None:
        """Ask the relay. Return None if there is no relay, or if it fails for any reason."""
        if self._relay_channel is None:
            return None
        relay = learner_pb2_grpc.LearnerServiceStub(self._relay_channel)
        try:
            return relay.GetWeights(request, timeout=RELAY_TIMEOUT_S, metadata=self._access.metadata())
        except grpc.RpcError:
            return None

    def _report(
        self, assignment: learner_pb2.JoinResponse, episodes: Sequence[FinishedEpisode]
    ) -> learner_pb2.ReportResponse:
        request = learner_pb2.ReportRequest(
            actor_id=assignment.actor_id,
            run_id=assignment.run_id,
            episodes=[
                learner_pb2.FinishedEpisode(episode_return=episode.episode_return, length=episode.length)
                for episode in episodes
            ],
        )
        return self._call(lambda stub: stub.Report, request)

    def _open(self) -> None:
        self._channel = self._access.open_channel(self._address, UNLIMITED_MESSAGES)
        self._stub = learner_pb2_grpc.LearnerServiceStub(self._channel)

    def _call(
        self,
        method_of: Callable[[learner_pb2_grpc.LearnerServiceStub], grpc.UnaryUnaryMultiCallable[Request, Response]],
        request: Request,
    ) -> Response:
        """Make a call. While the learner is unreachable, retry until the time limit."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            left_s = max(deadline - time.monotonic(), MIN_TIMEOUT_S)
            if self._access.is_renewed():
                self._channel.close()  # another thread's call repeats itself
                self._open()
            try:
                call = method_of(self._stub).future(
                    request, timeout=left_s, metadata=self._access.metadata(), wait_for_ready=True
                )
                return self._result(call)
            except grpc.RpcError as error:
                code = error.code()
                if code is grpc.StatusCode.FAILED_PRECONDITION:
                    raise RunChangedError(error.details()) from None
                if code in _REFUSALS:
                    raise LearnerRefusesError(
                        f"the learner at {self._address} refuses: {error.details()}; check REPLAY_TOKEN, "
                        f"or {LEARNER_TOKEN_VARIABLE} if the learner's token differs from the server's"
                    ) from None
                if code is grpc.StatusCode.INVALID_ARGUMENT:
                    raise LearnerRefusesError(
                        f"the learner at {self._address} refuses what this actor sends: {error.details()}"
                    ) from None
                if code not in _AWAY or time.monotonic() >= deadline:
                    raise LearnerUnavailableError(
                        f"no learner answered at {self._address} for {self._timeout_s:.0f} s ({code.name}: "
                        f"{error.details()}); check --learner, that replay-train is running, "
                        "and the REPLAY_LEARNER_TLS... variables"
                    ) from error
                self._stop.wait(RETRY_PAUSE_S)
                self._raise_if_told_to_stop()

    def _result(self, call: grpc.Future[Response]) -> Response:
        """Wait for the reply. Raise `ToldToStopError` if told to stop."""
        while True:
            try:
                return call.result(STOP_LOOK_S)
            except grpc.FutureTimeoutError:
                if self._stop.is_set():
                    call.cancel()
                self._raise_if_told_to_stop()

    def _raise_if_told_to_stop(self) -> None:
        if self._stop.is_set():
            raise ToldToStopError(f"told to stop while waiting for the learner at {self._address}")

    def __enter__(self) -> LearnerClient:
        """Return this client, for a ``with`` block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the client."""
        self.close()
