"""What importing the client loads, in a new interpreter, and how long that takes."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import packages_distributions

import pytest
from packaging.utils import canonicalize_name

from tests.packaging.project import metadata, required_by

OWN_SHARE = 0.7
"""How much CPU time the client's own modules may take to import, compared with the libraries that they need."""
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


def cpu_s_of(modules: str) -> float:
    """CPU time of an import in a new interpreter, in seconds."""
    program = f"import time; began = time.process_time(); import {modules}; print(time.process_time() - began)"
    return float(shown_by(program)[0])


@pytest.mark.timed
def test_importing_the_client_takes_little_longer_than_importing_its_libraries() -> None:
    # In turn, because the speed of a machine changes.
    times = [(cpu_s_of("numpy, grpc.aio, google.protobuf.message"), cpu_s_of("replay_client")) for _ in range(STARTS)]
    libraries_s, client_s = (min(column) for column in zip(*times, strict=True))
    assert client_s - libraries_s <= OWN_SHARE * libraries_s
