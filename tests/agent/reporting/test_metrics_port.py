"""The metrics of a run."""

from __future__ import annotations

import io
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from replay_agent.processes.signals import StopRequest
from replay_agent.reporting.metrics_port import MetricsPort
from replay_agent.reporting.progress import ProgressView, Status
from replay_agent.settings.train_settings import TrainSettings
from replay_agent.training.run import train
from rich.console import Console

from tests.agent.short_runs import Watcher
from tests.support.http_port import opener
from tests.support.server_process import ServerProcess

STATUS = Status(
    env_steps=500,
    updates=250,
    recent_return=123.5,
    best_mean=None,
    loss=0.25,
    grad_norm=1.0,
    mean_value=2.0,
    epsilon=0.5,
    beta=0.75,
    steps_per_s=777.0,
    updates_per_s=388.0,
    batch_wait_s=1.5,
)


def read(port: MetricsPort) -> str:
    with opener().open(f"http://127.0.0.1:{port.port}/metrics", timeout=30) as reply:
        text: str = reply.read().decode()
    return text


def samples(port: MetricsPort) -> dict[str, float]:
    families = text_string_to_metric_families(read(port))
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_readers_see_the_latest_status_and_so_does_the_view_behind() -> None:
    behind = Watcher(0, lambda: None)
    with MetricsPort(behind, "127.0.0.1", 0) as port:
        assert samples(port) == {}
        port.show(STATUS)
        port.show(replace(STATUS, env_steps=600))
        assert samples(port) == {
            "replay_train_env_steps_total": 600,
            "replay_train_updates_total": 250,
            "replay_train_batch_wait_seconds_total": 1.5,
            "replay_train_recent_return": 123.5,
            "replay_train_loss": 0.25,
            "replay_train_gradient_norm": 1.0,
            "replay_train_mean_value": 2.0,
            "replay_train_epsilon": 0.5,
            "replay_train_beta": 0.75,
        }
    assert [status.env_steps for status in behind.statuses] == [500, 600]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is missing: apt-get install prometheus")
def test_promtool_has_nothing_to_say_about_the_metrics() -> None:
    with MetricsPort(ProgressView(), "127.0.0.1", 0) as port:
        port.show(replace(STATUS, best_mean=200.0))
        text = read(port)
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


@pytest.mark.timed
def test_a_slow_reader_does_not_hold_up_the_end_of_a_run() -> None:
    with MetricsPort(ProgressView(), "127.0.0.1", 0) as port:
        slow = socket.create_connection(("127.0.0.1", port.port))
        slow.send(b"GET /metr")
        began = time.monotonic()
        port.show(STATUS)
    assert time.monotonic() - began < 4.0  # less than the time limit for the reader
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port.port))
    slow.close()


def test_a_reader_that_hangs_up_leaves_no_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    with MetricsPort(ProgressView(), "127.0.0.1", 0) as port:
        with socket.create_connection(("127.0.0.1", port.port)) as leaving:
            leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            leaving.send(b"GET /metr")
        port.show(STATUS)
        assert samples(port)["replay_train_updates_total"] == 250
    assert capfd.readouterr().err == ""


def test_it_listens_on_an_ipv6_address() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this host has no IPv6")
    with MetricsPort(ProgressView(), "::1", 0) as port:
        socket.create_connection(("::1", port.port)).close()


def test_a_port_in_use_is_an_error_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"http_port to listen on, got 127.0.0.1:{number}"):
            MetricsPort(ProgressView(), "127.0.0.1", number)


def test_a_run_shows_its_metrics(
    server: ServerProcess, settings_of: Callable[..., TrainSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, float]] = []
    shows = MetricsPort.show

    def look(port: MetricsPort, status: Status) -> None:
        shows(port, status)
        seen.append(samples(port))

    monkeypatch.setattr(MetricsPort, "show", look)
    train(settings_of(server=server.address, http_port=0), StopRequest(), Console(file=io.StringIO()))
    assert seen[-1]["replay_train_env_steps_total"] == 900
    assert seen[-1]["replay_train_updates_total"] == 200
    assert seen[-1]["replay_train_batch_wait_seconds_total"] > 0
    assert "replay_train_best_return" in seen[-1]
