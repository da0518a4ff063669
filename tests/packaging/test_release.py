"""The release script: what it changes, and what it refuses. `make release-check` builds and installs."""

from __future__ import annotations

import tomllib

from packaging.version import Version

from scripts.release import UNRELEASED, changes
from tests.packaging.project import ROOT, metadata


def test_every_file_with_the_version_is_changed() -> None:
    changed = {
        name: change(ROOT.joinpath(name).read_text("utf-8")) for name, change in changes("9.8.7", "2030-01-02").items()
    }
    assert "**Version 9.8**" in changed["README.md"]
    assert tomllib.loads(changed["pyproject.toml"])["project"]["version"] == "9.8.7"
    assert 'version: 9.8.7\nappVersion: "9.8.7"\n' in changed["deploy/helm/replay/Chart.yaml"]
    assert "\nversion: 9.8.7\ndate-released: 2030-01-02\n" in changed["CITATION.cff"]
    assert f"\n{UNRELEASED}\n\n## [9.8.7] - 2030-01-02\n" in changed["CHANGELOG.md"]


def test_the_files_have_the_version_of_the_project() -> None:
    version = metadata()["project"]["version"]
    assert f'\nversion: {version}\nappVersion: "{version}"\n' in ROOT.joinpath(
        "deploy/helm/replay/Chart.yaml"
    ).read_text("utf-8")
    assert f"\nversion: {version}\n" in ROOT.joinpath("CITATION.cff").read_text("utf-8")
    assert f"\n## [{version}] - " in ROOT.joinpath("CHANGELOG.md").read_text("utf-8")
    readme = ROOT.joinpath("README.md").read_text("utf-8")
    assert f"**Version {Version(version).major}.{Version(version).minor}**" in readme
