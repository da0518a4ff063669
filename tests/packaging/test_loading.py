"""What importing the client loads, in a new interpreter, and how long that takes."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import packages_distributions

import pytest
from packaging.utils import canonicalize_name

from tests.packaging.project import metadata, required_by

LIMIT_S = 0.35
STARTS = 5


def shown_by(program: str) -> list[str]:
    """Words that a program prints; without variables, coverage does not measure it."""
    command = [sys.executable, "-I", "-c", program]
    return subprocess.run(command, env={}, capture_output=True, text=True, check=True, timeout=60).stdout.split()


def loaded_by(module: str) -> set[str]:
    """Top-level modules that are loaded after importing a module."""
    return {name.partition(".")[0] for name in shown_by(f"import sys, {module}; print(*sys.modules)")}


def test_importing_the_client_loads_no_library_of_an_extra() -> None:
    project = metadata()["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    only_extras = required_by(extras) - required_by(project["dependencies"])
    loaded = loaded_by("replay_client")
    assert {"replay_client", "numpy", "grpc"} <= loaded
    assert {"torch", "numba", "pydantic", "rich", "gymnasium"} <= only_extras
    distributions = packages_distributions()
    assert {
        name
        for name in loaded - loaded_by("grpc")  # which loads some of its own extensions
        if only_extras & {canonicalize_name(found) for found in distributions.get(name, [])}
    } == set()
    assert {"jax", "tensordict", "pytest"} & loaded == set()


@pytest.mark.timed
def test_importing_the_client_takes_no_longer_than_a_moment() -> None:
    # CPU time, which hardly depends on what else the machine does.
    program = "import time; began = time.process_time(); import replay_client; print(time.process_time() - began)"
    assert min(float(shown_by(program)[0]) for _ in range(STARTS)) <= LIMIT_S
