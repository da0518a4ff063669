"""Converts an actor's task, including its network, to and from a message."""

from __future__ import annotations

from dataclasses import asdict

from replay_proto.v1.learner_pb2 import JoinResponse, QNetworkSpec

from replay_agent.dqn.networks import Bounds, NetworkSpec


def make_task(
    env_id: str,
    table: str,
    n_step: int,
    gamma: float,
    network: NetworkSpec,
    *,
    actor_priorities: bool = False,
    clip_rewards: bool = False,
) -> JoinResponse:
    """Build the part of the assignment that is the same for all actors; `LearnerService.join` adds the rest."""
    return JoinResponse(
        env_id=env_id,
        table=table,
        n_step=n_step,
        gamma=gamma,
        network=QNetworkSpec(**asdict(network)),
        actor_priorities=actor_priorities,
        clip_rewards=clip_rewards,
    )


def network_of(task: JoinResponse) -> NetworkSpec:
    """Return the specification of the network in a task."""
    spec = task.network
    return NetworkSpec(
        observation_shape=tuple(spec.observation_shape),
        observation_dtype=spec.observation_dtype,
        actions=spec.actions,
        hidden_sizes=tuple(spec.hidden_sizes),
        dueling=spec.dueling,
        bounds=Bounds(tuple(spec.bounds.low), tuple(spec.bounds.high)) if spec.HasField("bounds") else None,
        lstm_units=spec.lstm_units,
    )
