"""The relay of a node fetches weights once for all of its actors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
import torch
from replay_agent.acting.seeds import RunSeeds
from replay_agent.distributed.assignment import make_task
from replay_agent.distributed.learner_access import LearnerAccess
from replay_agent.distributed.learner_client import LearnerClient
from replay_agent.distributed.learner_server import LearnerServer
from replay_agent.distributed.learner_service import Guidance, LearnerService, PublishedWeights
from replay_agent.dqn.networks import NetworkSpec, build_network
from replay_agent.processes.own_access import OwnAccess, own_access
from replay_agent.ray import weights_relay
from replay_agent.ray.weights_relay import WeightsRelay
from replay_proto.v1 import learner_pb2, learner_pb2_grpc

from tests.support.refusals import code_of

SPEC = NetworkSpec((4,), "float32", actions=2, hidden_sizes=(8,), dueling=False)
TASK = make_task("Some-v0", "table-1", n_step=1, gamma=0.9, network=SPEC)


class CountedWeights(PublishedWeights):
    """Counts how often the weights are sent."""

    sent = 0
    are_limited = False
    """Whether too many bytes were sent recently."""

    def newer_than(self, version: int) -> tuple[int, bytes]:
        number, data = super().newer_than(version)
        data = b"" if self.are_limited else data
        self.sent += bool(data)
        return number, data


class Run:
    """A learner, a relay, and clients of both."""

    def __init__(self, access: OwnAccess, stack: ExitStack) -> None:
        self.weights = CountedWeights(build_network(SPEC).state_dict())
        service = LearnerService(TASK, RunSeeds(1), self.weights, lambda: Guidance(10, 0.1))
        self.learner = LearnerServer(service, "127.0.0.1", 0, LearnerAccess(tokens=access.tokens_file))
        stack.callback(self.learner.close)
        self.relay = WeightsRelay(self.learner.address, access)
        stack.callback(self.relay.close)
        self._access, self._stack = access, stack

    def client(self) -> LearnerClient:
        made = LearnerClient(
            self.learner.address, timeout_s=20.0, token=self._access.token, weights_relay=self.relay.address()
        )
        self._stack.callback(made.close)
        return made


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with own_access(tmp_path / "access") as access, ExitStack() as stack:
        yield Run(access, stack)


def test_actors_of_a_node_cost_the_learner_one_transfer(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_relay, "MAX_AGE_S", 60.0)
    found: list[object] = []

    def fetch(client: LearnerClient) -> None:
        assignment = client.join("some")
        newer = client.newer_weights(assignment, have_version=0)
        assert newer is not None
        found.append(newer[0])

    threads = [threading.Thread(target=fetch, args=[run.client()]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1] * 8
    assert run.weights.sent == 1


def test_the_relay_hands_out_what_the_learner_has_published_since(run: Run) -> None:
    client = run.client()
    assignment = client.join("some")
    client.newer_weights(assignment, have_version=0)
    changed = {name: torch.full_like(tensor, 3.0) for name, tensor in build_network(SPEC).state_dict().items()}
    run.weights.publish(changed)
    found = client.newer_weights(assignment, have_version=1)
    assert found is not None
    version, weights = found
    assert version == 2
    assert all(torch.equal(weights[name], tensor) for name, tensor in changed.items())
    assert client.newer_weights(assignment, have_version=2) is None


def test_the_relay_asks_again_for_weights_that_the_learner_did_not_send(run: Run) -> None:
    client = run.client()
    assignment = client.join("some")
    run.weights.are_limited = True
    assert client.newer_weights(assignment, have_version=0) is None
    run.weights.are_limited = False
    assert client.newer_weights(assignment, have_version=0) is not None


def test_without_the_relay_weights_come_from_the_learner(run: Run) -> None:
    client = run.client()
    assignment = client.join("some")
    run.relay.close()
    assert client.newer_weights(assignment, have_version=0) is not None
    assert run.weights.sent == 1


def test_the_relay_refuses_callers_without_the_token(run: Run) -> None:
    with grpc.insecure_channel(run.relay.address()) as channel:
        relay = learner_pb2_grpc.LearnerServiceStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            relay.GetWeights(learner_pb2.GetWeightsRequest(), timeout=10)
    assert code_of(refused.value) is grpc.StatusCode.UNAUTHENTICATED
