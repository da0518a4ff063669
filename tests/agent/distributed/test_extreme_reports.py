"""Extreme numbers in every numeric field of what actors send to the learner."""

from __future__ import annotations

import math

import pytest
import torch
from google.protobuf.message import Message
from replay_agent.acting.seeds import RunSeeds
from replay_agent.distributed.assignment import make_task
from replay_agent.distributed.learner_service import Guidance, LearnerService, PublishedWeights
from replay_agent.dqn.networks import NetworkSpec
from replay_proto.errors import FieldError
from replay_proto.v1 import learner_pb2

from tests.support.request_fields import Field, numeric_fields

SERVICE = learner_pb2.DESCRIPTOR.services_by_name["LearnerService"]
SPEC = NetworkSpec((2,), "float32", actions=2, hidden_sizes=(4,), dueling=False)


@pytest.fixture
def service() -> LearnerService:
    task = make_task("Some-v0", "run", n_step=1, gamma=0.9, network=SPEC)
    weights = PublishedWeights({"weight": torch.zeros(1)})
    made = LearnerService(task, RunSeeds(0), weights, lambda: Guidance(granted_steps=1, epsilon=0.5))
    made.join(learner_pb2.JoinRequest(name="actor"))
    return made


def request_of(method: str, run_id: str) -> Message:
    """A valid request with every field set."""
    if method == "Report":
        episode = learner_pb2.FinishedEpisode(episode_return=1.5, length=3)
        return learner_pb2.ReportRequest(actor_id=1, run_id=run_id, episodes=[episode])
    return learner_pb2.GetWeightsRequest(have_version=1, run_id=run_id)


@pytest.mark.parametrize("field", numeric_fields(SERVICE), ids=str)
def test_an_extreme_number_is_answered_or_refused_by_name(service: LearnerService, field: Field) -> None:
    handler = service.methods()[field.method].answer
    handler(request_of(field.method, service.run_id))
    refusals = []
    for number in field.extremes:
        request = request_of(field.method, service.run_id)
        assert field.put(request, number), f"no request sets {field}"
        try:
            handler(request).SerializeToString()
        except FieldError as error:
            refusals.append(str(error))
    assert all(field.path[-1].name in refusal for refusal in refusals)
    taken = service.reports.take_episodes()
    assert all(math.isfinite(episode.episode_return) and episode.length >= 1 for episode in taken)
