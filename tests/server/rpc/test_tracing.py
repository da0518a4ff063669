"""Spans of programs that have configured OpenTelemetry."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from replay_proto.tracing import context_metadata, span

from tests.support.server_process import ServerProcess

CONFIGURES = """
import os
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

def line(span):
    return span.to_json(indent=None) + "\\n"

provider = TracerProvider()
file = open(os.environ["SPANS"], "a", buffering=1)
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=file, formatter=line)))
trace.set_tracer_provider(provider)
"""
"""Runs when Python starts, as `opentelemetry-instrument` does."""
TRAINS = """
import sys
from opentelemetry import trace
from replay_client import Column, ReplayClient, TableNotFoundError

tracer = trace.get_tracer("program")
with ReplayClient(sys.argv[1], same_host=sys.argv[2] == "near") as client:
    with tracer.start_as_current_span("training"):
        table = client.create_table("traced", columns={"x": Column("int64")}, capacity=10)
        table.insert({"x": [1, 2, 3]})
        with table.writer() as writer:
            writer.append(x=4)
        with table.sampler(2, beta=0.4) as sampler:
            next(sampler)
        table.update_priorities(table.sample(2, beta=0.4), [1.0, 2.0])
        client.checkpoint()
        try:
            client.table("missing")
        except TableNotFoundError:
            pass
    with tracer.start_as_current_span("evaluation"):
        table.sample(2, beta=0.4)
    stats = table.stats()
    assert (stats.sampled_same_host > 0) == (sys.argv[2] == "near"), stats
"""


def spans_in(path: Path) -> list[dict[str, Any]]:
    """All spans of a process."""
    return list(map(json.loads, path.read_text().splitlines()))


@pytest.mark.skipif(importlib.util.find_spec("opentelemetry") is None, reason="opentelemetry-sdk is missing")
@pytest.mark.parametrize("client", ["near", "far"])
def test_calls_streams_and_checkpoints_are_spans_of_the_clients_trace(tmp_path: Path, client: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(CONFIGURES)

    def variables(name: str) -> dict[str, str]:
        path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
        return {"PYTHONPATH": path, "SPANS": str(tmp_path / name)}

    folders = ("--memory-dir", str(tmp_path), "--checkpoint-dir", str(tmp_path / "checkpoints"))
    server = ServerProcess(tmp_path / "log", *folders, environment=variables("server"))
    try:
        command = [sys.executable, "-c", TRAINS, server.address, client]
        done = subprocess.run(
            command, env=os.environ | variables("client"), capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
    finally:
        server.terminate()

    training, evaluation = spans_in(tmp_path / "client")
    made = spans_in(tmp_path / "server")
    found = {span["name"]: span for span in made}
    streams = {"replay/Learn opened", "replay/Write opened"}
    for name in {"replay/CreateTable", "replay/Checkpoint", "replay/UpdatePriorities"} | streams:
        assert found[name]["context"]["trace_id"] == training["context"]["trace_id"]
        assert found[name]["parent_id"] == training["context"]["span_id"]
        assert (found[name]["kind"], found[name]["status"]["status_code"]) == ("SpanKind.SERVER", "UNSET")
    drawn = [span["parent_id"] for span in made if span["name"] == "replay/Sample"]
    assert drawn == [training["context"]["span_id"], evaluation["context"]["span_id"]]
    assert found["replay/write checkpoint"]["parent_id"] == found["replay/Checkpoint"]["context"]["span_id"]
    assert found["replay/DescribeTable"]["status"]["status_code"] == "ERROR"
    assert not [name for name in found if "local" in name]
    assert "Traceback" not in server.log()


def test_without_a_configured_sdk_there_is_nothing() -> None:
    assert span("replay/Sample") is span("replay/Learn opened", ())
    assert context_metadata() == ()
