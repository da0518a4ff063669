"""Acts for a learner: plays episodes with its weights, and records the steps in its replay table."""

from __future__ import annotations

import logging
import os
import socket
import threading

from replay_client import ReplayClient, ReplayError, Table, TableNotFoundError, Tls, Writer
from replay_client.security import token_from_environment
from replay_proto.v1.learner_pb2 import JoinResponse, ReportResponse

from replay_agent.acting.actor import Actor, FinishedEpisode
from replay_agent.acting.environments import UnsupportedEnvironmentError
from replay_agent.acting.seeds import ActorSeeds
from replay_agent.distributed.assignment import network_of
from replay_agent.distributed.learner_client import (
    LEARNER_TLS_PREFIX,
    LEARNER_TOKEN_VARIABLE,
    LearnerClient,
    LearnerRefusesError,
    LearnerUnavailableError,
    RunChangedError,
    ToldToStopError,
)
from replay_agent.dqn.networks import ActingNetwork, build_network
from replay_agent.r2d2 import build_recurrent_network
from replay_agent.replay.access import CLOSE_TIMEOUT_S, TABLE_LOST
from replay_agent.replay.rows import Recorder, make_recorder
from replay_agent.settings.actor_settings import ActorSettings

log = logging.getLogger("replay_agent.actor")

FAILURES = (LearnerRefusesError, LearnerUnavailableError, ReplayError, UnsupportedEnvironmentError)
"""Errors that `run_actor` raises."""
# Interval between attempts to open a table that the learner has not recreated yet.
TABLE_RETRY_S = 0.2


class ActingRun:
    """Acts for one run of a learner."""

    def __init__(self, assignment: JoinResponse, learner: LearnerClient, client: ReplayClient) -> None:
        """Build the network and create the environment."""
        self._assignment = assignment
        self._learner = learner
        self._client = client
        spec = network_of(assignment)
        self._network: ActingNetwork = build_recurrent_network(spec) if spec.lstm_units else build_network(spec)
        self._weights_version = 0
        self._actor = Actor(
            assignment.env_id,
            ActorSeeds(assignment.seed),
            self._network,
            actor_id=assignment.actor_id,
            estimates=assignment.actor_priorities,
            clips_rewards=assignment.clip_rewards,
        )
        self._episodes: list[FinishedEpisode] = []

    def run(self, stop: threading.Event, reconnect_timeout_s: float) -> None:
        """Act until the learner reports that the run is over, or ``stop`` is set.

        Raises:
            RunChangedError: the learner was restarted; join again.
            LearnerUnavailableError: the learner is unreachable.
            ReplayError: the replay server is unreachable, or refuses a call.
        """
        finished = False
        while not finished and not stop.is_set():
            table = self._find_table(stop)
            if table is None:
                return
            writer = table.writer(reconnect_timeout_s=reconnect_timeout_s)
            try:
                finished = self._act(make_recorder(writer, self._assignment.n_step, self._assignment.gamma), stop)
            except TABLE_LOST as error:
                log.warning("the table is gone, waiting for a new one: %s", error)
            finally:
                _close_quietly(writer)

    def close(self) -> None:
        """Close the environment."""
        self._actor.close()

    def _find_table(self, stop: threading.Event) -> Table | None:
        """Wait until the learner's table exists, and open it; return None if the run is over or ``stop`` is set."""
        while not stop.is_set():
            try:
                return self._client.table(self._assignment.table)
            except TableNotFoundError:
                # The learner creates it; the reply to a report tells whether the run continues.
                if self._learner.report(self._assignment, ()).finished:
                    return None
                stop.wait(TABLE_RETRY_S)
        return None

    def _act(self, recorder: Recorder, stop: threading.Event) -> bool:
        """Alternately report and act. Return True when the run is over, False when ``stop`` is set."""
        while not stop.is_set():
            guidance = self._report()
            if guidance.finished:
                return True
            self._update_weights(guidance.weights_version)
            epsilon = self._assignment.epsilon if self._assignment.HasField("epsilon") else guidance.epsilon
            if not guidance.granted_steps:
                stop.wait(guidance.pause_ms / 1_000)
            for _ in range(guidance.granted_steps):
                if stop.is_set():  # A step may take long.
                    break
                self._step(recorder, epsilon)
        return False

    def _report(self) -> ReportResponse:
        guidance = self._learner.report(self._assignment, self._episodes)
        self._episodes.clear()
        return guidance

    def _update_weights(self, newest: int) -> None:
        if newest == self._weights_version:
            return
        found = self._learner.newer_weights(self._assignment, self._weights_version)
        if found is not None:
            self._weights_version, weights = found
            self._network.load_state_dict(weights)

    def _step(self, recorder: Recorder, epsilon: float) -> None:
        step, episode = self._actor.step(epsilon)
        recorder.record(step)
        if episode is not None:
            self._episodes.append(episode)


def run_actor(settings: ActorSettings, stop: threading.Event, weights_relay: str | None = None) -> None:
    """Act for the learner's current run, and join again after each restart of the learner.

    Args:
        settings: settings of the actor.
        stop: set it to stop the actor.
        weights_relay: HOST:PORT of a `WeightsRelay` on this machine; None: weights come from the learner.

    Raises:
        LearnerRefusesError: the learner refuses the token.
        LearnerUnavailableError: the learner is unreachable.
        ReplayError: the replay server is unreachable, or refuses a call.
        UnsupportedEnvironmentError: the environment cannot be created on this machine.
    """
    token, learner_tls = token_from_environment(), Tls.from_environment(LEARNER_TLS_PREFIX)
    learner_token = token_from_environment(LEARNER_TOKEN_VARIABLE) or token
    with (
        LearnerClient(
            settings.learner, settings.learner_timeout_s, learner_token, learner_tls, stop, weights_relay
        ) as learner,
        ReplayClient(
            settings.server,
            token=token,
            tls=Tls.from_environment(),
            wait_for_server_s=settings.reconnect_timeout_s,
        ) as client,
    ):
        try:
            while not stop.is_set() and not _act_for_one_run(settings, learner, client, stop):
                log.info("the learner was restarted, joining again")
        except ToldToStopError as told:
            log.info("%s", told)


def _act_for_one_run(
    settings: ActorSettings, learner: LearnerClient, client: ReplayClient, stop: threading.Event
) -> bool:
    """Join a run and act for it. Return False if the learner was restarted, otherwise True."""
    assignment = learner.join(settings.name or f"{socket.gethostname()}:{os.getpid()}")
    log.info(
        "actor %d of run %s: %s, table %s",
        assignment.actor_id,
        assignment.run_id,
        assignment.env_id,
        assignment.table,
    )
    acting = ActingRun(assignment, learner, client)
    try:
        acting.run(stop, settings.reconnect_timeout_s)
    except RunChangedError:
        return False
    finally:
        acting.close()
    return True


def _close_quietly(writer: Writer) -> None:
    """Close the writer; log rows that could not be sent."""
    try:
        writer.close(timeout_s=CLOSE_TIMEOUT_S)
    except ReplayError as error:
        log.warning("some rows were not sent: %s", error)
