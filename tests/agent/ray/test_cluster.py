"""Services and runs on a Ray cluster with a head and three nodes, all on this machine."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

pytest.importorskip("ray", reason="needs the extra `ray`: pip install '.[ray]'", exc_type=ImportError)

import ray
from ray.cluster_utils import Cluster
from ray.exceptions import RayError
from replay_agent.commands.replay_train import main as replay_train
from replay_agent.processes.actor_pool import ActorsFailError
from replay_agent.ray import PlacementError, ServiceError, connect, start, stop
from replay_agent.ray.actor_pool import RayActorPool
from replay_agent.ray.keeper import STOP_TIMEOUT_S, KeeperReport
from replay_agent.ray.replay_map import NAMESPACE
from replay_agent.settings.train_settings import TrainSettings
from replay_client import Column, ReplayClient

from tests.agent.corridor import CORRIDOR_ID
from tests.support.deadlines import wait_until

NODE = {"num_cpus": 4, "object_store_memory": 80 << 20, "include_dashboard": False}
# The defaults notice a dead node after 15 s.
SETTINGS = {
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "4",
    "RAY_USAGE_STATS_ENABLED": "0",
}
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        made = Cluster(initialize_head=True, head_node_args={**NODE, "num_cpus": 0})
        for _ in range(3):
            made.add_node(wait=False, **NODE)
        made.wait_for_nodes(timeout=PATIENCE_S)
        yield made
        ray.shutdown()
        made.shutdown()


@pytest.fixture
def connected(cluster: Cluster) -> Iterator[None]:
    ray.init(address=cluster.address, logging_level=logging.WARNING, log_to_driver=False)
    yield
    ray.shutdown()


def keeper(name: str, number: int) -> Any:
    return ray.get_actor(f"{name}/shard-{number}", NAMESPACE)


def report(name: str, number: int) -> KeeperReport | None:
    """Return what a keeper reports, if it answers."""
    try:
        found: KeeperReport = ray.get(keeper(name, number).report.remote(), timeout=1)
    except (RayError, ValueError):
        return None
    return found


def address(name: str, number: int) -> str | None:
    found = report(name, number)
    return None if found is None else found.address


def back(name: str, number: int, pid: int | None, what: str) -> float:
    """Wait until a keeper's server is another process and ready; return the seconds that this took."""
    began = time.monotonic()

    def is_back() -> bool:
        found = report(name, number)
        return found is not None and found.address is not None and found.pid != pid

    wait_until(is_back, f"the server is back after its {what} was killed", PATIENCE_S)
    print(f"{what} killed: back after {time.monotonic() - began:.1f} s")
    return time.monotonic() - began


def left_over(folder: Path) -> list[int]:
    """Return the servers whose tables are below a folder."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if any(str(folder) in word for word in process.info["cmdline"] or [])
    ]


@pytest.mark.timed
def test_servers_come_back_wherever_they_died(cluster: Cluster, connected: None, tmp_path: Path) -> None:
    began = time.monotonic()
    client = start("kept", folder=tmp_path, lost_after_s=60.0)
    took_s = time.monotonic() - began
    print(f"ready after {took_s:.1f} s")
    assert took_s < 30
    table = client.create_table("rows", columns={"x": Column("float32")}, capacity=900)
    for _ in range(9):
        table.insert({"x": np.zeros(10, np.float32)})
    first = report("kept", 0)
    assert first is not None
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    back("kept", 0, first.pid, "server")
    assert address("kept", 0) == first.address
    second = report("kept", 1)
    assert second is not None
    os.kill(ray.get(keeper("kept", 1).__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)
    back("kept", 1, second.pid, "keeper")
    assert address("kept", 1) == second.address
    third = report("kept", 2)
    assert third is not None
    node = ray.get(keeper("kept", 2).__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()))
    cluster.remove_node(next(each for each in cluster.worker_nodes if each.node_id == node), allow_graceful=False)
    back("kept", 2, third.pid, "node")
    # All rows are there: the tables are on storage that the nodes share, so all ids stay the same.
    wait_until(lambda: set(active(connect("kept"))) == set(now("kept")), "the map has all addresses", PATIENCE_S)
    assert [shard.id for shard in shards(connect("kept"))] == [0, 1, 2]
    assert len(connect("kept")["rows"]) == 90
    cluster.add_node(**NODE)
    stop("kept")
    wait_until(lambda: not left_over(tmp_path), "no process is left over")
    with pytest.raises(ServiceError, match="kept"):
        connect("kept")


def shards(client: ReplayClient) -> Any:
    found = client.shards.map()
    assert found is not None
    return found.in_use


def active(client: ReplayClient) -> list[str]:
    return [shard.address for shard in shards(client)]


def now(name: str) -> list[str | None]:
    return [address(name, number) for number in range(3)]


def test_a_shard_whose_storage_is_gone_is_given_up_and_replaced(connected: None, tmp_path: Path) -> None:
    client = start("local", shards=2, folder=tmp_path, data_dir=tmp_path / "disk", lost_after_s=1.0)
    client.create_table("rows", columns={"x": Column("float32")}, capacity=900)
    before = report("local", 1)
    assert before is not None
    gone = ray.get(keeper("local", 1).__ray_call__.remote(lambda _: os.getpid()))
    os.kill(gone, signal.SIGSTOP)  # or the keeper would write into the folder again
    shutil.rmtree(tmp_path / "disk" / "shard-1")
    os.kill(gone, signal.SIGKILL)
    back("local", 1, before.pid, "disk")

    def in_use() -> list[int]:
        return [shard.id for shard in shards(connect("local"))]

    wait_until(lambda: max(in_use()) == 2 and len(in_use()) == 2, "a new id replaces the lost one", PATIENCE_S)
    assert before.shard_id not in in_use()
    stop("local")


@contextmanager
def busy_nodes(cpus: int) -> Iterator[None]:
    """Reserve so many CPUs of each node, more than half of them, with tasks that run until they are cancelled."""
    refs = [ray.remote(num_cpus=cpus)(lambda: time.sleep(600)).remote() for _ in range(3)]
    try:
        wait_until(lambda: ray.available_resources().get("CPU", 0) <= 12 - 3 * cpus, "the nodes are busy")
        yield
    finally:
        for ref in refs:
            ray.cancel(ref, force=True)
        wait_until(lambda: ray.available_resources().get("CPU", 0) > 11, "the cluster is free again")


def test_what_has_no_room_is_said_with_the_resource_that_is_short(connected: None, tmp_path: Path) -> None:
    with pytest.raises(PlacementError, match=r"expected 50 CPU \(the cluster has 12\)"):
        start("large", shards=50, folder=tmp_path, placement_timeout_s=0.5)
    with busy_nodes(4):
        began = time.monotonic()
        with pytest.raises(PlacementError, match=r"of 3 servers were not placed within 1 s: short of CPU"):
            start("large", shards=3, folder=tmp_path, placement_timeout_s=1.0)
        assert time.monotonic() - began < STOP_TIMEOUT_S  # it does not wait for servers that were never placed


def test_actors_that_fit_no_single_node_are_reported_and_given_up(
    connected: None, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def placed(cpus: float) -> Any:
        return ray.remote(num_cpus=cpus)(lambda: True).remote()

    with busy_nodes(3):  # one CPU of each node is free
        too_large = placed(2)
        settings = TrainSettings(ray="auto", actors=1, actor_cpus=2.0).model_copy(update={"placement_timeout_s": 0.0})
        pool = RayActorPool(settings, "none", tmp_path, tmp_path)
        assert ray.get(placed(1), timeout=PATIENCE_S)  # what fits is placed in the meantime
        assert not ray.wait([too_large], timeout=0)[0]
        pool.supervise()
        pool.supervise()
        reports = [record.message for record in caplog.records if "no single node has enough" in record.message]
        assert len(reports) == 1
        assert reports[0].startswith("1 of 1 actors were not placed within 0 s")
        monkeypatch.setattr("replay_agent.ray.placement.START_TIMEOUT_S", 0.0)
        with pytest.raises(ActorsFailError, match="no single node has enough"):
            pool.supervise()
        pool.close()
    assert ray.get(too_large, timeout=PATIENCE_S)  # it fits now


def test_a_run_ends_well_though_a_server_and_the_learner_are_killed(
    cluster: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "one"
    place = f"--ray={cluster.address} --shards=2 --actors=1 --runs-dir={tmp_path} --name=one"
    env = f"--env={CORRIDOR_ID}"  # actors find it, because it is on the path of this program
    shape = "--steps=3000 --learning-starts=200 --batch-size=16 --hidden-sizes=16 --checkpoint-interval-s=0.5"
    judging = "--validation-episodes=1 --confirm-episodes=1 --evaluation-episodes=2 --solved-return=none"
    output = "--no-tensorboard --no-progress"

    def kill() -> None:
        wait_until(lambda: len(list((run / "checkpoints").glob("*"))) > 1, "the run makes progress", 200.0)
        os.kill(left_over(run / "replay" / "shard-0")[0], signal.SIGKILL)
        os.kill(learner_of(run), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    status = replay_train(f"{place} {env} {shape} {judging} {output}".split())
    killer.join()
    shown = capfd.readouterr()
    assert status == 0, shown.err
    assert json.loads((run / "result.json").read_text())["env_steps"] >= 3000
    assert (run / "starts").read_text() == "2\n"
    assert f"actor-0 acts for run one: {CORRIDOR_ID}" in (run / "logs" / "actor-0.log").read_text()
    wait_until(lambda: not left_over(tmp_path), "no process is left over")


def learner_of(run: Path) -> int:
    """Return the process that has locked a run."""
    return next(
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if process.info["cmdline"]
        and process.info["cmdline"][0].startswith("ray::RemoteLearner")
        and any(file.path == str(run / "lock") for file in process.open_files())
    )
