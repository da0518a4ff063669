"""The sdist, the wheel built from it, and a base install of that wheel in a separate environment."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.packaging.project import CONSTRAINTS, PACKAGES, ROOT, metadata


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a command, check that it succeeds, and return its output."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


STARTING = "import replay_client; replay_client.LocalServer()"
SITE = "import sysconfig; print(sysconfig.get_path('purelib'))"
INSTALLED = """
import importlib.metadata, replay_client
replay_client.ReplayClient
print(*(found.name for found in importlib.metadata.distributions()))
"""
ORIGINS = """
import replay_agent, replay_client, replay_proto, replay_pytest, replay_server
for package in replay_agent, replay_client, replay_proto, replay_pytest, replay_server:
    print(package.__file__)
"""


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's source archive, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", folder)
    (archive,) = folder.iterdir()
    with tarfile.open(archive) as opened:
        # Python 3.11.0 to 3.11.3 have no extraction filters.
        opened.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        opened.extractall(folder)
    return folder / archive.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built only from the source archive, by the steps of ``pip install``."""
    folder = tmp_path_factory.mktemp("wheel")
    offline = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation")
    run(sys.executable, "-m", "pip", "wheel", *offline, "--wheel-dir", folder, sdist)
    (built,) = folder.iterdir()
    return built


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    names = [Path(name) for name in zipfile.ZipFile(wheel).namelist()]
    assert {name.parts[0] for name in names if not name.parts[0].endswith(".dist-info")} == set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_wheel_holds_every_file_of_a_package_and_says_that_it_is_typed(package: str, wheel: Path) -> None:
    root = PACKAGES[package]
    sources = {
        str(file.relative_to(root.parent))
        for file in root.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert f"{package}/py.typed" in sources
    assert {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith(f"{package}/")} == sources


@pytest.mark.deep
def test_a_base_install_is_the_client_without_what_the_extras_add(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path, symlinks=True)
    python = tmp_path / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--quiet", "--no-compile", "--constraint", CONSTRAINTS, wheel)

    extras = metadata()["project"]["optional-dependencies"]
    base = {canonicalize_name(Requirement(line).name) for line in metadata()["project"]["dependencies"]}
    added = {canonicalize_name(Requirement(line).name) for lines in extras.values() for line in lines} - base
    assert {"torch", "numba", "pydantic"} <= added
    installed = {canonicalize_name(name) for name in run(python, "-I", "-W", "error", "-c", INSTALLED).split()}
    assert "grpcio" in installed
    assert installed & added == set()
    started = subprocess.run((python, "-c", STARTING), capture_output=True, text=True, check=False, timeout=60)
    assert re.search(r"MissingExtraError: .*numba.* not installed; .*pip install '\.\[server\]'\n$", started.stderr)

    for command in metadata()["project"]["scripts"]:
        told = subprocess.run((python.with_name(command),), capture_output=True, text=True, check=False, timeout=60)
        assert (told.returncode, told.stdout, told.stderr.count("\n")) == (1, "", 1), f"{command}: {told.stderr}"
        asked = re.search(r"is not installed; in a clone, run: pip install '\.\[(.+)\]'$", told.stderr)
        assert told.stderr.startswith(f"{command}: ")
        assert asked is not None
        assert set(asked[1].split(",")) <= set(extras)


def test_what_is_installed_with_all_libraries_has_the_commands_and_the_pytest_plugin(
    wheel: Path, tmp_path: Path
) -> None:
    """Libraries are those of this environment, so nothing is downloaded."""
    venv.create(tmp_path, symlinks=True)
    python = tmp_path / "bin" / "python"
    site, libraries = (Path(run(each, "-c", SITE).strip()) for each in (python, sys.executable))
    (site / "libraries.pth").write_text(f"{libraries}\n")  # without the .pth files there, which lead to this project
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--quiet", "--no-compile", "--no-index", "--no-deps", wheel)

    assert {Path(origin).parents[1] for origin in run(python, "-I", "-c", ORIGINS).split()} == {site}
    version = metadata()["project"]["version"]
    assert run(python.with_name("replay-server"), "--version") == f"replay-server {version}\n"
    fixtures = run(python, "-m", "pytest", "--fixtures", "-p", "no:cacheprovider", "-q", cwd=tmp_path)
    assert "replay_server [session scope]" in fixtures
