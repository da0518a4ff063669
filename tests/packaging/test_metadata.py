"""pyproject.toml, constraints.txt and the test environment are consistent."""

from __future__ import annotations

import importlib
from importlib.metadata import version

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.packaging.project import metadata, pinned, required_by

PROJECT = metadata()["project"]
EXTRAS = PROJECT["optional-dependencies"]
OPTIONAL = ("arrow", "atari", "minari", "ray", "sb3", "sb3-contrib", "tianshou", "torchrl")
"""Extras that development environments may lack."""
REQUIRED = [
    *PROJECT["dependencies"],
    *(line for extra in EXTRAS if extra not in OPTIONAL for line in EXTRAS[extra]),
    *metadata()["dependency-groups"]["dev"],
    *metadata()["dependency-groups"]["docs"],
    *metadata()["build-system"]["requires"],
    "pip",
]
INTEGRATIONS = [
    *metadata()["dependency-groups"]["integrations"],
    *(line for extra in OPTIONAL for line in EXTRAS[extra]),
]
"""Optional in development environments: tests of missing libraries are skipped."""


def test_all_that_is_needed_is_pinned_and_has_that_version_here() -> None:
    # Special builds, such as torch without CUDA, have a label after a plus.
    installed = {name: Version(version(name)).public for name in required_by(REQUIRED)}
    assert installed == {name: pinned().get(name, "not pinned") for name in installed}


@pytest.mark.parametrize("requirement", [Requirement(line) for line in [*REQUIRED, *INTEGRATIONS, "uv"]], ids=str)
def test_what_is_pinned_satisfies_what_is_required(requirement: Requirement) -> None:
    assert requirement.specifier.contains(pinned()[requirement.name.lower()])


@pytest.mark.parametrize("command", PROJECT["scripts"])
def test_every_command_has_a_function(command: str) -> None:
    module, _, function = PROJECT["scripts"][command].partition(":")
    assert callable(getattr(importlib.import_module(module), function))
