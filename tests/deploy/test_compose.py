"""The compose file of three servers adds servers like the first one, and nothing else."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from tests.packaging.project import ROOT

ONE = ("docker-compose.yml",)
THREE = ("docker-compose.yml", "docker-compose.shards.yml")
SERVERS = ["server", "server-2", "server-3"]

pytestmark = pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is missing")


@functools.cache
def configuration(files: tuple[str, ...]) -> str:
    """What Compose reads, with the services of all profiles."""
    named = [word for file in files for word in ("--file", str(ROOT / file))]
    command = ["docker-compose", *named, "--profile", "monitoring", "--profile", "tools", "config"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def services(files: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(configuration(files))["services"]
    return found


def test_three_servers_differ_only_in_volume_and_port() -> None:
    found = services(THREE)
    assert [name for name in sorted(found) if name.startswith("server")] == SERVERS
    tables = [server["volumes"].pop(0) for server in map(found.get, SERVERS) if server is not None]
    assert [volume.partition(":")[0] for volume in tables] == ["tables", "tables-2", "tables-3"]
    assert found["server"].pop("ports")
    assert found["server"] == found["server-2"] == found["server-3"]


def test_every_client_knows_three_servers_and_the_trainer_waits_for_them() -> None:
    one, three = services(ONE), services(THREE)
    assert set(three) - set(one) == set(SERVERS[1:])
    addresses = ",".join(f"{name}:50051" for name in SERVERS)
    for name, variable in (("trainer", "TRAIN_SERVER"), ("actor", "ACTOR_SERVER"), ("client", "SERVER")):
        assert one[name]["environment"][f"REPLAY_{variable}"] == "server:50051"
        assert three[name]["environment"][f"REPLAY_{variable}"] == addresses
    assert sorted(three["trainer"]["depends_on"]) == SERVERS


@pytest.mark.parametrize("files", [ONE, THREE])
def test_a_command_starts_no_server_that_has_stopped(files: tuple[str, ...]) -> None:
    assert "depends_on" not in services(files)["client"]


def test_prometheus_asks_the_servers_that_there_are() -> None:
    targets = ROOT / "deploy" / "prometheus" / "targets"
    mounted = [volume for volume in services(THREE)["prometheus"]["volumes"] if "targets" in volume]
    assert len(mounted) == 1
    assert re.search(r"targets/shards\.yml:/etc/prometheus/targets/server\.yml:ro$", mounted[0])
    for name, servers in (("server", SERVERS[:1]), ("shards", SERVERS)):
        assert yaml.safe_load((targets / f"{name}.yml").read_text()) == [
            {"targets": [f"{each}:8080" for each in servers]}
        ]
