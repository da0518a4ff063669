"""The learner's service over a real gRPC server on a free port."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import grpc
import pytest
import safetensors.torch
import torch
from replay_agent.acting.actor import FinishedEpisode
from replay_agent.acting.seeds import RunSeeds
from replay_agent.distributed import learner_service
from replay_agent.distributed.assignment import make_task, network_of
from replay_agent.distributed.learner_access import RefusedError
from replay_agent.distributed.learner_client import (
    LearnerClient,
    LearnerUnavailableError,
    RunChangedError,
    ToldToStopError,
)
from replay_agent.distributed.learner_server import LearnerServer
from replay_agent.distributed.learner_service import Guidance, LearnerService, PublishedWeights
from replay_agent.dqn.networks import Bounds, NetworkSpec, build_network
from replay_proto.v1 import learner_pb2

from tests.support.refusals import code_of

SPEC = NetworkSpec((10, 10, 4), "bool", actions=6, hidden_sizes=(32, 16), dueling=True)
TASK = make_task("Some-v0", "table-1", n_step=3, gamma=0.97, network=SPEC)


@dataclass
class Served:
    """The learner's side, as in the trainer."""

    weights: PublishedWeights
    guidance: Guidance = field(default_factory=lambda: Guidance(granted_steps=25, epsilon=0.125))

    def __post_init__(self) -> None:
        self.service = LearnerService(TASK, RunSeeds(4), weights=self.weights, guide=lambda: self.guidance)
        self.server = LearnerServer(self.service, "127.0.0.1", 0)


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served(PublishedWeights(build_network(SPEC).state_dict()))
    yield made
    made.server.close()


@pytest.fixture
def connect() -> Iterator[Callable[[str], LearnerClient]]:
    made: list[LearnerClient] = []

    def connect_to(address: str) -> LearnerClient:
        made.append(LearnerClient(address, timeout_s=20.0))
        return made[-1]

    yield connect_to
    for client in made:
        client.close()


@pytest.fixture
def client(served: Served, connect: Callable[[str], LearnerClient]) -> LearnerClient:
    return connect(served.server.address)


def task_of(assignment: learner_pb2.JoinResponse) -> learner_pb2.JoinResponse:
    """The task in an assignment, without the fields that differ between actors."""
    for own in ("run_id", "actor_id", "seed"):
        assignment.ClearField(own)
    return assignment


def test_an_actor_gets_the_whole_task(client: LearnerClient) -> None:
    assert task_of(client.join("host:1")) == TASK


def test_an_actor_gets_the_bounds_of_what_it_sees_and_the_size_of_its_memory() -> None:
    bounds = Bounds((-1.2, -math.inf), (0.6, math.inf))
    spec = NetworkSpec((2,), "float32", 3, (8,), dueling=False, bounds=bounds, lstm_units=5)
    assert network_of(make_task("Some-v0", "table-1", 1, 0.9, spec)) == spec


def test_every_actor_gets_a_number_and_a_seed_of_its_own(client: LearnerClient) -> None:
    assignments = [client.join("host:1") for _ in range(3)]
    assert [assignment.actor_id for assignment in assignments] == [1, 2, 3]
    assert len({assignment.seed for assignment in assignments}) == 3


def test_weights_arrive_as_they_were_published(served: Served, client: LearnerClient) -> None:
    network = build_network(SPEC)
    served.weights.publish(network.state_dict())
    found = client.newer_weights(client.join("a"), have_version=0)
    assert found is not None
    version, weights = found
    assert version == 2
    assert weights.keys() == network.state_dict().keys()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in network.state_dict().items())


def test_weights_are_sent_only_when_they_are_newer(served: Served, client: LearnerClient) -> None:
    assignment = client.join("a")
    assert client.newer_weights(assignment, have_version=1) is None
    served.weights.publish(build_network(SPEC).state_dict())
    assert client.newer_weights(assignment, have_version=1) is not None
    assert client.newer_weights(assignment, have_version=2) is None


def test_a_late_actor_gets_the_newest_weights_at_once(served: Served, client: LearnerClient) -> None:
    for _ in range(5):
        served.weights.publish(build_network(SPEC).state_dict())
    found = client.newer_weights(client.join("late"), have_version=0)
    assert found is not None
    assert found[0] == 6


def test_a_report_brings_episodes_and_is_answered_with_guidance(served: Served, client: LearnerClient) -> None:
    assignment = client.join("a")
    answer = client.report(assignment, [FinishedEpisode(12.5, 30), FinishedEpisode(-1.0, 7)])
    assert (answer.granted_steps, answer.epsilon, answer.weights_version) == (25, 0.125, 1)
    assert not answer.finished
    assert served.service.reports.arrived.is_set()
    assert served.service.reports.take_episodes() == [FinishedEpisode(12.5, 30, 1), FinishedEpisode(-1.0, 7, 1)]
    assert served.service.reports.take_episodes() == []


def test_actors_that_are_ahead_are_told_to_pause(served: Served, client: LearnerClient) -> None:
    served.guidance = Guidance(granted_steps=0, epsilon=0.1)
    answer = client.report(client.join("a"), [])
    assert answer.granted_steps == 0
    assert answer.pause_ms > 0


def test_actors_are_told_when_the_run_is_over(served: Served, client: LearnerClient) -> None:
    assignment = client.join("a")
    served.service.finish()
    assert client.report(assignment, []).finished


def test_a_restarted_learner_tells_its_actors_to_join_again(
    served: Served, connect: Callable[[str], LearnerClient]
) -> None:
    client = connect(served.server.address)
    earlier = client.join("a")
    earlier.run_id = "another run"
    with pytest.raises(RunChangedError, match="join again"):
        client.report(earlier, [])
    with pytest.raises(RunChangedError, match="join again"):
        client.newer_weights(earlier, 0)


class _CutOffService(LearnerService):
    """Cuts off the first calls, like a stopping learner, but always in the same way."""

    def __init__(self, cut_off: int) -> None:
        super().__init__(
            TASK, RunSeeds(4), PublishedWeights(build_network(SPEC).state_dict()), lambda: Guidance(25, 0.125)
        )
        self.left = cut_off

    def join(self, request: learner_pb2.JoinRequest) -> learner_pb2.JoinResponse:
        if self.left == 0:
            return super().join(request)
        self.left -= 1
        raise RefusedError(grpc.StatusCode.CANCELLED, "the learner stops")


def test_a_call_that_a_stopping_learner_cuts_off_is_made_again(connect: Callable[[str], LearnerClient]) -> None:
    service = _CutOffService(cut_off=2)
    server = LearnerServer(service, "127.0.0.1", 0)
    assert task_of(connect(server.address).join("host:1")) == TASK
    assert service.left == 0
    server.close()


def test_a_learner_that_never_answers_is_given_up_on() -> None:
    with (
        LearnerClient("127.0.0.1:1", timeout_s=0.3) as client,
        pytest.raises(LearnerUnavailableError, match=r"no learner answered at 127\.0\.0\.1:1"),
    ):
        client.join("a")


def test_a_call_that_waits_for_a_learner_ends_when_told_to_stop() -> None:
    stop = threading.Event()
    timer = threading.Timer(0.3, stop.set)
    began = time.monotonic()
    timer.start()
    with LearnerClient("127.0.0.1:1", timeout_s=60.0, stop=stop) as client, pytest.raises(ToldToStopError):
        client.join("host:1")
    assert time.monotonic() - began < 10.0


def test_weights_are_serialized_once_however_many_actors_ask(
    served: Served, client: LearnerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    serialized: list[int] = []

    def save(tensors: dict[str, torch.Tensor]) -> bytes:
        serialized.append(len(tensors))
        return safetensors.torch.save(tensors)

    monkeypatch.setattr(learner_service, "save", save)
    assignment = client.join("a")
    threads = [
        threading.Thread(target=lambda: [client.newer_weights(assignment, 0) for _ in range(10)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(serialized) == 1
    served.weights.publish(build_network(SPEC).state_dict())
    for _ in range(10):
        client.newer_weights(assignment, 0)
    assert len(serialized) == 2


def test_weights_go_out_at_a_bounded_rate_and_to_everybody_in_the_end() -> None:
    now_s = 0.0
    tensor = torch.zeros(learner_service.WEIGHT_BYTES_PER_S // 4 // 4)  # a quarter of the bytes sent per second
    weights = PublishedWeights({"weight": tensor}, clock=lambda: now_s)
    sent = 0
    for tenth in range(100):
        now_s = tenth / 10
        for _ in range(3):  # an actor that keeps asking
            version, data = weights.newer_than(0)
            assert version == 1
            sent += len(data)
    assert 9 <= sent / learner_service.WEIGHT_BYTES_PER_S <= 12
    now_s += 1.0
    assert weights.newer_than(0)[1]


def test_weights_are_whole_while_many_fetch_and_others_are_published(served: Served, client: LearnerClient) -> None:
    shapes = {name: tensor.shape for name, tensor in build_network(SPEC).state_dict().items()}
    versions = {value: {name: torch.full(shape, float(value)) for name, shape in shapes.items()} for value in range(20)}
    assignment = client.join("a")
    torn: list[int] = []

    def fetch() -> None:
        for _ in range(30):
            found = client.newer_weights(assignment, have_version=0)
            if found is not None and found[0] > 1:
                values = {float(value) for tensor in found[1].values() for value in (tensor.min(), tensor.max())}
                if values != {float(found[0] - 2)}:
                    torn.append(found[0])

    threads = [threading.Thread(target=fetch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for weights in versions.values():
        served.weights.publish(weights)
    for thread in threads:
        thread.join()
    assert torn == []


def test_a_port_in_use_is_refused_with_advice(served: Served) -> None:
    with pytest.raises(OSError, match="choose another --learner-port"):
        LearnerServer(served.service, "127.0.0.1", served.server.port)


def test_a_request_that_is_far_too_long_is_not_received(served: Served, client: LearnerClient) -> None:
    joined = client.join("a")
    with grpc.insecure_channel(served.server.address) as channel:
        report: Callable[..., bytes] = channel.unary_unary("/replay.v1.LearnerService/Report")
        run = learner_pb2.ReportRequest(actor_id=joined.actor_id, run_id=joined.run_id).SerializeToString()
        assert report(run, timeout=20.0)
        with pytest.raises(grpc.RpcError) as error:
            report(run + b"\x1a\x00" * (1 << 20), timeout=20.0)
    assert code_of(error.value) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert served.service.reports.take_episodes() == []
