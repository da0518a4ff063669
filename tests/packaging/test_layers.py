"""The parts of a package form layers: imports go in one direction only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.packaging.project import PACKAGES

LAYERS: dict[str, list[set[str]]] = {
    "replay_server": [
        {"__init__", "errors"},
        {"files"},
        {"auth", "kernels"},
        {"backends"},
        {"storage"},
        {"table"},
        {"flow"},
        {"catalog"},
        {"checkpoint"},
        {"rpc"},
        {"http"},
        {"process"},
        {"__main__"},
    ],
    "replay_client": [
        {"errors"},
        {"_extras", "draws", "results", "security", "sequences"},
        {"_rows"},
        {"_adapters", "_transport", "batch", "spaces"},
        {"_learning", "_shards", "_writing", "jax"},
        {"_operations"},
        {"sync"},
        {"aio", "gymnasium", "local_server", "minari", "sb3", "tianshou", "torch", "torchrl"},
        {"__init__", "sb3_contrib"},
        {"cli"},
    ],
    "replay_agent": [
        {"atari_options", "own_parts"},
        {"dqn", "memory_tasks", "processes", "settings"},
        {"acting", "r2d2"},
        {"algorithms"},
        {"replay", "reporting"},
        {"distributed"},
        {"training"},
        {"ray", "trainer"},
        {"commands"},
        {"__init__"},
    ],
}
"""Layers by package, lowest first. A module or sub-package imports only from lower layers."""


def part_of(package: str, source: Path) -> str:
    """The part to which a file belongs."""
    first, *below = source.relative_to(PACKAGES[package]).parts
    return first if below else source.stem


def imported(package: str, source: Path) -> Iterator[str]:
    """Parts of its own package that a file imports, including inside functions."""
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for module in modules:
            root, *below = module.split(".")
            if root == package and below != ["__version__"]:
                yield below[0] if below and below[0] in parts(package) else "__init__"


@cache
def parts(package: str) -> set[str]:
    """Direct modules and sub-packages of a package."""
    return {part_of(package, source) for source in PACKAGES[package].rglob("*.py")}


@pytest.mark.parametrize("package", LAYERS)
def test_every_part_has_its_floor(package: str) -> None:
    floors = LAYERS[package]
    assert parts(package) == set().union(*floors)
    assert sum(map(len, floors)) == len(set().union(*floors)), "a part is on two floors"


@pytest.mark.parametrize("package", LAYERS)
def test_a_part_imports_only_from_the_floors_below_it(package: str) -> None:
    floor_of = {part: number for number, floor in enumerate(LAYERS[package]) for part in floor}
    upward = {
        (str(source.relative_to(PACKAGES[package])), name)
        for source in PACKAGES[package].rglob("*.py")
        for name in imported(package, source)
        if name != part_of(package, source) and floor_of[name] >= floor_of[part_of(package, source)]
    }
    assert upward == set()
