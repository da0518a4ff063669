"""The Helm chart: rendered by Helm's own library, checked against Kubernetes' schemas and the commands' settings."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from replay_agent.settings.actor_settings import load_actor_settings
from replay_agent.settings.train_settings import load_train_settings
from replay_server.process.settings import ServerSettings, load_settings

from tests.packaging.project import ROOT

helm = pytest.importorskip("helm_python", reason="make test-chart installs Helm's library")
kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="make test-chart installs the schemas")

CHART = ROOT / "deploy" / "helm" / "replay"
OLDEST, NEWEST = "1.27", "1.37"
"""Versions of Kubernetes: the oldest that Chart.yaml admits, and the newest whose schemas there are."""
HOSTS = [f"exp-replay-{number}.exp-replay.ml.svc.cluster.local:50051" for number in range(5)]
TOKENS = {"tokens": {"secret": "tokens", "clientSecret": "clients"}}
TLS = {"tls": {"secret": "certificates"}}
MUTUAL_TLS = {"tls": {"secret": "certificates", "requireClientCertificates": True}}
RUN: dict[str, Any] = {
    "trainer": {"enabled": True, "name": "pong", "args": ["--env=ALE/Pong-v5"]},
    "actors": {"replicas": 4},
}
IN_MEMORY = {"server": {"storage": "memory", "antiAffinity": "required", "args": ["--max-bytes=6GiB"]}}
VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "one server": {"replicas": 1, **RUN},
    "in memory": {**IN_MEMORY, **RUN},
    "tokens": {**TOKENS, **RUN},
    "tls": {**TOKENS, **TLS, **RUN},
    "mutual tls": {**TOKENS, **MUTUAL_TLS, **RUN, "replicas": 5},
    "placed": {"server": {"nodeSelector": {"disk": "ssd"}, "tolerations": [{"operator": "Exists"}]}, **RUN},
}

Manifests = dict[tuple[str, str], dict[str, Any]]
"""Manifests by kind and name, without the suffix of the trainer's job."""


def render(values: Mapping[str, Any]) -> Manifests:
    """Render the chart as a release ``exp`` in the namespace ``ml``."""
    with helm.Chart.load(str(CHART)) as chart:
        chart.validate_schema(dict(values))
        texts = chart.render(dict(values), name="exp", namespace="ml")
    found = [each for path, text in texts.items() if path.endswith(".yaml") for each in yaml.safe_load_all(text)]
    return {(each["kind"], each["metadata"]["name"].split("-trainer-")[0]): each for each in found if each}


def pod(manifests: Manifests, kind: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = manifests[kind, name]["spec"]["template"]["spec"]
    return found


def container(manifests: Manifests, kind: str, name: str) -> dict[str, Any]:
    (found,) = pod(manifests, kind, name)["containers"]
    assert isinstance(found, dict)
    return found


def variables(found: Mapping[str, Any]) -> dict[str, str]:
    """Variables with a value in the manifest."""
    return {each["name"]: each["value"] for each in found["env"] or () if "value" in each}


def server_settings(manifests: Manifests) -> ServerSettings:
    return load_settings(container(manifests, "StatefulSet", "exp-replay")["args"])


@pytest.fixture(params=VARIANTS)
def values(request: pytest.FixtureRequest) -> dict[str, Any]:
    return VARIANTS[request.param]


@pytest.fixture
def manifests(values: dict[str, Any]) -> Manifests:
    return render(values)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in os.environ:
        if name.startswith("REPLAY_"):
            monkeypatch.delenv(name)
    return monkeypatch


def test_helm_finds_no_fault() -> None:
    found = helm.lint(str(CHART))
    assert not found["errors"]
    assert [each["error"] for each in found["messages"]] == ["icon is recommended"]


def test_kubernetes_accepts_every_manifest(manifests: Manifests) -> None:
    for manifest in manifests.values():
        for version in (OLDEST, NEWEST):
            kubernetes_validate.validate(manifest, version, strict=True)


def test_selectors_and_names_of_one_release_fit_together(manifests: Manifests) -> None:
    servers = manifests["StatefulSet", "exp-replay"]["spec"]
    assert ("Service", servers["serviceName"]) in manifests
    pods = [each["spec"]["template"] for each in manifests.values() if "template" in each["spec"]]
    for (kind, _), manifest in manifests.items():
        if kind in ("Service", "PodDisruptionBudget", "StatefulSet", "Deployment"):
            selector = manifest["spec"]["selector"]
            wanted = selector.get("matchLabels", selector).items()
            assert sum(wanted <= each["metadata"]["labels"].items() for each in pods) == 1
    for each in pods:
        spec = each["spec"]
        claims = [claim["metadata"]["name"] for claim in servers.get("volumeClaimTemplates", [])]
        volumes = {volume["name"] for volume in spec["volumes"] or ()} | set(claims)
        (only,) = spec["containers"]
        assert {mount["name"] for mount in only["volumeMounts"] or ()} <= volumes


def test_servers_start_with_these_flags(
    manifests: Manifests, values: dict[str, Any], environment: pytest.MonkeyPatch
) -> None:
    settings = server_settings(manifests)
    assert (settings.host, settings.port) == ("0.0.0.0", 50051)
    assert settings.insecure == ("tokens" not in values)
    assert (settings.data_dir is None) == (values.get("server", {}).get("storage") == "memory")
    mounts = {mount["mountPath"] for mount in container(manifests, "StatefulSet", "exp-replay")["volumeMounts"]}
    files = (settings.tokens, settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    stored = settings.data_dir or settings.memory_dir
    for path in (stored, *(file for file in files if file is not None)):
        assert any(path.is_relative_to(mount) for mount in mounts)


def test_tables_in_memory_fit_into_the_limit_of_their_pod() -> None:
    spec = pod(render(IN_MEMORY), "StatefulSet", "exp-replay")
    (volume,) = [each["emptyDir"] for each in spec["volumes"] if each["name"] == "tables"]
    assert volume == {"medium": "Memory", "sizeLimit": "6Gi"}
    assert spec["containers"][0]["resources"]["limits"] == {"memory": "8Gi"}


def test_the_command_in_a_server_s_pod_has_the_token_of_the_administrator(
    manifests: Manifests, values: dict[str, Any]
) -> None:
    found = container(manifests, "StatefulSet", "exp-replay").get("env") or ()
    tokens = [each["valueFrom"]["secretKeyRef"] for each in found if each["name"] == "REPLAY_TOKEN"]
    assert tokens == ([{"name": "clients", "key": "admin"}] if "tokens" in values else [])


def test_the_image_and_the_installation_have_what_the_documented_runs_need() -> None:
    assert RUN["trainer"]["args"] == ["--env=ALE/Pong-v5"]
    for page, installed in (("kubernetes.md", "Dockerfile"), ("slurm.md", "docs/operations/slurm.md")):
        assert "ALE/Pong-v5" in (ROOT / "docs" / "operations" / page).read_text("utf-8")
        extras = re.findall(r"\[([a-z,]*agent[a-z,]*)\]", (ROOT / installed).read_text("utf-8"))
        assert extras
        assert all("atari" in found.split(",") for found in extras)


def test_probes_ask_the_health_service(manifests: Manifests, values: dict[str, Any]) -> None:
    server = container(manifests, "StatefulSet", "exp-replay")
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        if "tls" not in values:
            assert server[name]["grpc"] == {"port": 50051}
            continue
        program, *arguments = server[name]["exec"]["command"][1:]
        assert arguments == ["localhost:50051"]
        copied = f"COPY docker/{Path(program).name} {Path(program).parent}/"
        assert copied in (ROOT / "Dockerfile").read_text()
        assert variables(server)["REPLAY_TLS_SERVER_NAME"] == f"$(POD_NAME).{HOSTS[0].partition('.')[2][:-6]}"


def test_several_servers_get_a_list_of_themselves(manifests: Manifests, values: dict[str, Any]) -> None:
    count = values.get("replicas", 3)
    assert (("Job", "exp-replay-shards") in manifests) == (count > 1)
    if count > 1:
        command = container(manifests, "Job", "exp-replay-shards")["command"]
        assert command == ["replay", "shards", "set", ",".join(HOSTS[:count])]


@pytest.mark.parametrize("variant", [name for name, values in VARIANTS.items() if "trainer" in values])
@pytest.mark.parametrize("is_resumed", [False, True])
def test_the_trainer_and_its_actors_find_servers_and_each_other(
    variant: str, is_resumed: bool, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    manifests = render(VARIANTS[variant])
    trainer, actor = (container(manifests, *of) for of in (("Job", "exp-replay"), ("Deployment", "exp-replay-actor")))
    runs = tmp_path / "runs"
    (runs / "pong").mkdir(parents=True)
    if is_resumed:
        (runs / "pong" / "settings.json").write_text('{"seed": 77}')
    # The shell program of the container, with a command that shows its flags in place of the trainer.
    shown = tmp_path / "replay-train"
    shown.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    shown.chmod(0o700)
    command = [part.replace("/runs/", f"{runs}/") for part in trainer["command"] + trainer["args"]]
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, check=True)
    for name, value in (variables(trainer) | variables(actor)).items():
        environment.setenv(name, value)
    settings = load_train_settings(done.stdout.splitlines())
    assert (settings.name, settings.seed) == ((None, 77) if is_resumed else ("pong", settings.seed))
    assert settings.env == "ALE/Pong-v5"
    seeds = ",".join(HOSTS[: min(3, VARIANTS[variant].get("replicas", 3))])
    acting = load_actor_settings(actor["command"][1:])
    assert settings.server == acting.server == seeds
    assert acting.run == "pong"


def test_another_setting_makes_another_job_and_a_further_server_does_not() -> None:
    def name(values: dict[str, Any]) -> str:
        with helm.Chart.load(str(CHART)) as chart:
            text = chart.render(values, name="exp", namespace="ml")["replay/templates/trainer.yaml"]
        return str(next(iter(yaml.safe_load_all(text)))["metadata"]["name"])

    changed = {"trainer": {**RUN["trainer"], "args": ["--env=ALE/Pong-v5", "--seed=2"]}}
    assert name({**RUN, "replicas": 3}) == name({**RUN, "replicas": 5})
    assert len({name(RUN), name(changed), name({**RUN, **TOKENS})}) == 3


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"replica": 3}, "replica"),
        ({"replicas": 0}, "replicas"),
        ({"server": {"storage": "disk"}}, "storage"),
        ({"server": {"args": ["max-bytes=6GiB"]}}, "args"),
        ({"tls": {"requireClientCertificates": True}}, "tls.secret"),
        ({"server": {"storage": "memory", "memorySize": "8Gi"}}, "server.memorySize 8Gi must be below"),
        ({"server": {"storage": "memory", "memorySize": "20000Mi"}}, "server.memorySize"),
    ],
)
def test_values_that_make_no_sense_are_refused_by_name(values: dict[str, Any], named: str) -> None:
    with pytest.raises(Exception, match=named):
        render(values)
