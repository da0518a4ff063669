"""Rules, alerts and dashboards are valid, and name metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from replay_agent.reporting.metrics_port import MetricsPort
from replay_agent.reporting.progress import ProgressView
from replay_server.files.memory_limit import MemoryUse
from replay_server.http.metrics import metrics
from replay_server.http.view import ServerView, Storage

from tests.packaging.project import ROOT

DEPLOY = ROOT / "deploy"
RULES = sorted((DEPLOY / "prometheus" / "rules").glob("*.yml"))
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
PAGE = ROOT / "docs" / "operations" / "monitoring.md"
RECORDED = re.compile(r"\b\w+:\w+:\w+")
EXPORTED = re.compile(r"\b(?:replay|grpc_server|process)_\w+")
SERIES = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
"""What Prometheus adds to the name of a metric, by its type."""
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is missing: apt-get install prometheus"
)


class Exported(Collector):
    """Metrics as the library renders them."""

    def __init__(self, found: Sequence[Metric]) -> None:
        self._found = found

    def collect(self) -> Sequence[Metric]:
        return self._found


def types_of(found: Sequence[Metric]) -> dict[str, str]:
    """The types of metrics by name."""
    text = generate_latest(Exported(found)).decode()
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))


@pytest.fixture(scope="module")
def exported() -> dict[str, str]:
    """All metrics of server and trainer."""
    server = types_of(list(metrics(ServerView((), {}, Storage(0, 0), 0, MemoryUse(1, 1, Path()), {}))))
    with MetricsPort(ProgressView(), "127.0.0.1", 0) as port:
        return server | types_of(list(port.collect()))


def queries_in(found: Any) -> Iterator[str]:
    """All queries of a dashboard, with values in place of its variables."""
    if isinstance(found, dict):
        for name, value in found.items():
            if name in ("expr", "definition"):
                yield re.sub(r"\$__rate_interval", "1m", re.sub(r"\$(instance|table)\b", "any", value))
            else:
                yield from queries_in(value)
    elif isinstance(found, list):
        for value in found:
            yield from queries_in(value)


def panels_of(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["panels"]
    return found


def told_apart_by(query: str) -> set[str]:
    """The labels without which two series of a query may have the same name."""
    if aggregated := re.match(r"(?:max|min|sum)(?: by \((.*?)\))? ?\(", query):
        return set(re.findall(r"\w+", aggregated[1] or ""))
    return {"table"} if query.startswith("job_table:") else {"instance"}


def promtool(*arguments: str) -> None:
    """Run promtool, which must have nothing to say but success."""
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@needs_promtool
def test_configuration_and_rules_are_valid_and_alerts_fire_when_they_should() -> None:
    promtool("check", "config", str(DEPLOY / "prometheus" / "prometheus.yml"))
    promtool("check", "rules", "--lint=all", "--lint-fatal", *map(str, RULES))
    promtool("test", "rules", *map(str, (DEPLOY / "prometheus" / "tests").glob("*.yml")))


@needs_promtool
@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_query_of_a_dashboard_parses(path: Path, tmp_path: Path) -> None:
    queries = [query for query in queries_in(json.loads(path.read_text())) if not query.startswith("label_values(")]
    assert len(queries) >= sum(panel["type"] != "row" for panel in panels_of(path))
    rules = [{"record": f"query:number:{number}", "expr": query} for number, query in enumerate(queries)]
    written = tmp_path / "rules.yml"  # JSON is YAML
    written.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))
    promtool("check", "rules", str(written))


def test_queries_name_only_metrics_that_are_exported_or_recorded(exported: dict[str, str]) -> None:
    series = {name + suffix for name, kind in exported.items() for suffix in SERIES[kind]}
    rules = [path.read_text() for path in RULES]
    recorded = set(re.findall(r"record: (\S+)", "".join(rules)))
    assert recorded
    texts = [*rules, *(query for path in DASHBOARDS for query in queries_in(json.loads(path.read_text())))]
    assert {name for text in texts for name in RECORDED.findall(text)} <= recorded
    named = {name for text in texts for name in EXPORTED.findall(RECORDED.sub("", text))}
    assert named
    assert named - series == set()


def test_dashboards_show_tables_over_all_servers_as_one_and_name_their_shards() -> None:
    wholes = {name for path in RULES for name in re.findall(r"record: (job_table:\S+)", path.read_text())}
    shown = {query for path in DASHBOARDS for query in queries_in(json.loads(path.read_text()))}
    assert wholes == {name for query in shown for name in RECORDED.findall(query) if name.startswith("job_table:")}
    for panel in (panel for path in DASHBOARDS for panel in panels_of(path)):
        for target in panel.get("targets", ()):
            named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert told_apart_by(target["expr"]) <= named, (panel["title"], target["expr"])


def test_every_metric_is_documented_and_every_documented_one_exists(exported: dict[str, str]) -> None:
    tables = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    documented = set(EXPORTED.findall("\n".join(tables)))
    ours = {name for name in exported if not name.startswith("process_")}
    assert documented == ours


def test_dashboards_use_the_provisioned_data_source_and_panels_do_not_overlap() -> None:
    uid = re.search(r"uid: (\S+)", (DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text())
    assert uid is not None
    for path in DASHBOARDS:
        taken: set[tuple[int, int]] = set()
        for panel in panels_of(path):
            place = panel["gridPos"]
            cells = {(x + place["x"], y + place["y"]) for x in range(place["w"]) for y in range(place["h"])}
            assert not cells & taken, panel["title"]
            assert max(x for x, _ in cells) < 24, panel["title"]
            taken |= cells
            assert panel["type"] == "row" or panel["datasource"]["uid"] == uid[1]


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is missing")
def test_the_profile_adds_prometheus_and_grafana_with_our_files() -> None:
    def services(*flags: str) -> set[str]:
        command = ["docker-compose", "--file", str(ROOT / "docker-compose.yml"), *flags, "config", "--services"]
        return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())

    assert {"prometheus", "grafana"} <= services("--profile", "monitoring")
    mounted = re.findall(r"- \./(deploy/\S+?):", (ROOT / "docker-compose.yml").read_text())
    assert {str(Path(path)) for path in mounted} == {
        "deploy/prometheus",
        "deploy/grafana/provisioning",
        "deploy/grafana/dashboards",
    }
    assert all((ROOT / path).is_dir() for path in mounted)
