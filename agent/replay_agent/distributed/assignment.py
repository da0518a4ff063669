"""The task of an actor, and its message form."""

from __future__ import annotations

from dataclasses import dataclass

from replay_proto.v1 import learner_pb2

from replay_agent.dqn.networks import Bounds, NetworkSpec


@dataclass(frozen=True)
class Task:
    """The task of a run, the same for all actors.

    Attributes:
        env_id: Gymnasium id of the environment.
        table: name of the replay table.
        n_step: steps per transition.
        gamma: discount per step.
        network: the network whose weights the learner serves.
    """

    env_id: str
    table: str
    n_step: int
    gamma: float
    network: NetworkSpec


@dataclass(frozen=True)
class Assignment:
    """A task, assigned to an actor.

    Attributes:
        task: the task.
        run_id: the learner's run.
        actor_id: number in this run, from 1.
        seed: of the actor's random streams.
    """

    task: Task
    run_id: str
    actor_id: int
    seed: int

    def to_proto(self) -> learner_pb2.JoinResponse:
        """As a message."""
        spec = self.task.network
        return learner_pb2.JoinResponse(
            run_id=self.run_id,
            actor_id=self.actor_id,
            seed=self.seed,
            env_id=self.task.env_id,
            table=self.task.table,
            n_step=self.task.n_step,
            gamma=self.task.gamma,
            network=learner_pb2.QNetworkSpec(
                observation_shape=spec.observation_shape,
                observation_dtype=spec.observation_dtype,
                actions=spec.actions,
                hidden_sizes=spec.hidden_sizes,
                dueling=spec.dueling,
                bounds=_bounds_to_proto(spec.bounds),
            ),
        )

    @classmethod
    def from_proto(cls, message: learner_pb2.JoinResponse) -> Assignment:
        """Read it from a message."""
        spec = message.network
        network = NetworkSpec(
            observation_shape=tuple(spec.observation_shape),
            observation_dtype=spec.observation_dtype,
            actions=spec.actions,
            hidden_sizes=tuple(spec.hidden_sizes),
            dueling=spec.dueling,
            bounds=_bounds_from_proto(spec),
        )
        task = Task(message.env_id, message.table, message.n_step, message.gamma, network)
        return cls(task, message.run_id, message.actor_id, message.seed)


def _bounds_to_proto(bounds: Bounds | None) -> learner_pb2.ObservationBounds | None:
    return learner_pb2.ObservationBounds(low=bounds.low, high=bounds.high) if bounds else None


def _bounds_from_proto(spec: learner_pb2.QNetworkSpec) -> Bounds | None:
    return Bounds(tuple(spec.bounds.low), tuple(spec.bounds.high)) if spec.HasField("bounds") else None
