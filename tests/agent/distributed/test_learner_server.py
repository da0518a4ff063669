"""A learner keeps serving its actors, whatever strangers and misbehaving actors do."""

from __future__ import annotations

import gzip
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import psutil
import pytest
import torch
from replay_agent.acting.seeds import RunSeeds
from replay_agent.distributed.assignment import make_task
from replay_agent.distributed.learner_access import LearnerAccess
from replay_agent.distributed.learner_client import LearnerClient
from replay_agent.distributed.learner_server import SERVICE, LearnerServer
from replay_agent.distributed.learner_service import Guidance, LearnerService, PublishedWeights
from replay_agent.dqn.networks import NetworkSpec
from replay_client.security import token_metadata
from replay_proto.access.serving import BODY_S

from tests.support.access import ALL, MINE, write_usual_tokens
from tests.support.deadlines import wait_until
from tests.support.http2 import GRPC_HEAD, Http2
from tests.support.refusals import code_of

SPEC = NetworkSpec((2,), "float32", actions=2, hidden_sizes=(4,), dueling=False)
TASK = make_task("Some-v0", f"{MINE}run", n_step=1, gamma=0.9, network=SPEC)
PATIENCE_S = 30.0
MOST_BYTES = 50 << 20
"""Memory that strangers may cost."""


class SlowWeights(PublishedWeights):
    """Weights on a device that is busy until released."""

    def __init__(self) -> None:
        super().__init__({"weight": torch.zeros(1)})
        self.is_asked, self.is_done = threading.Event(), threading.Event()

    def newer_than(self, version: int) -> tuple[int, bytes]:
        self.is_asked.set()
        assert self.is_done.wait(PATIENCE_S)
        return super().newer_than(version)


@pytest.fixture
def weights() -> Iterator[SlowWeights]:
    made = SlowWeights()
    yield made
    made.is_done.set()


@pytest.fixture
def server(weights: SlowWeights, tmp_path: Path) -> Iterator[LearnerServer]:
    service = LearnerService(TASK, RunSeeds(0), weights, lambda: Guidance(granted_steps=1, epsilon=0.5))
    made = LearnerServer(service, "127.0.0.1", 0, LearnerAccess(tokens=write_usual_tokens(tmp_path / "tokens.toml")))
    yield made
    weights.is_done.set()
    made.close()


def joins(server: LearnerServer) -> bool:
    with LearnerClient(server.address, timeout_s=5.0, token=ALL) as client:
        return client.join("actor").actor_id > 0


def test_bodies_held_back_hold_nobody_up(server: LearnerServer) -> None:
    ended: queue.SimpleQueue[grpc.StatusCode] = queue.SimpleQueue()

    def hold_back(token: str | None) -> None:
        # Channels with the same options would share a connection.
        with grpc.insecure_channel(server.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            join: Callable[..., bytes] = channel.stream_unary(f"/{SERVICE}/Join")
            with pytest.raises(grpc.RpcError) as error:
                join(iter(queue.SimpleQueue[bytes]().get, b""), metadata=token_metadata(token), timeout=PATIENCE_S)
            ended.put(code_of(error.value))

    began = time.monotonic()
    holding = [threading.Thread(target=hold_back, args=(ALL,)) for _ in range(12)]
    for thread in holding:
        thread.start()
    hold_back(None)
    assert ended.get() is grpc.StatusCode.UNAUTHENTICATED
    assert joins(server)
    assert time.monotonic() - began < BODY_S, "they were let in once the others had been cut off"
    for thread in holding:
        thread.join()
    assert {ended.get() for _ in holding} == {grpc.StatusCode.INVALID_ARGUMENT}


@pytest.mark.parametrize("token", [None, ALL], ids=["stranger", "with a token"])
def test_compressed_messages_are_not_unpacked(server: LearnerServer, token: str | None) -> None:
    bomb = gzip.compress(bytes(60 << 20), 9)
    metadata = [("grpc-encoding", "gzip"), *token_metadata(token)]
    process = psutil.Process()
    before = process.memory_info().rss
    for _ in range(3):
        with Http2(socket.create_connection(("127.0.0.1", server.port))) as link:
            call = link.begin(f"/{SERVICE}/Join", metadata)
            link.send(call, GRPC_HEAD.pack(1, len(bomb)) + bomb, is_last=True)
            link.wait_for_end(call)
            assert process.memory_info().rss - before < MOST_BYTES
    assert joins(server)


def test_others_are_answered_while_the_device_has_the_weights(server: LearnerServer, weights: SlowWeights) -> None:
    with LearnerClient(server.address, timeout_s=PATIENCE_S, token=ALL) as client:
        assignment = client.join("actor")
        found: list[object] = []
        asking = threading.Thread(target=lambda: found.append(client.newer_weights(assignment, have_version=0)))
        asking.start()
        assert weights.is_asked.wait(PATIENCE_S)
        assert client.report(assignment, []).granted_steps == 1
        assert found == []
        weights.is_done.set()
        asking.join()
        assert found


def test_it_can_be_closed_twice_and_its_port_be_used_again(server: LearnerServer) -> None:
    server.close()
    server.close()
    service = LearnerService(TASK, RunSeeds(0), PublishedWeights({}), lambda: Guidance(1, 0.5))
    LearnerServer(service, "127.0.0.1", server.port).close()


def test_a_learner_that_ends_leaves_no_descriptors_open(weights: SlowWeights) -> None:
    process = psutil.Process()

    def end_one() -> None:
        service = LearnerService(TASK, RunSeeds(0), weights, lambda: Guidance(1, 0.0))
        LearnerServer(service, "127.0.0.1", 0).close()

    end_one()
    first = process.num_fds()
    for _ in range(8):
        end_one()
    # gRPC closes its last descriptors in threads of its own.
    wait_until(lambda: process.num_fds() <= first, "no descriptors are left")
