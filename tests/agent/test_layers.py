"""Which sub-package of the agent may import which: arrows run one way."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import replay_agent

ROOT = Path(replay_agent.__file__).parent
_ACTING = {"acting", "dqn"}
_SHOWN = {"reporting", *_ACTING}
MAY_IMPORT = {
    "settings": set[str](),
    "dqn": set[str](),
    "processes": set[str](),
    "acting": {"dqn"},
    "replay": _ACTING,
    "reporting": _ACTING,
    "distributed": {"replay", "settings", *_ACTING},
    "training": {"distributed", "processes", "replay", "settings", *_SHOWN},
    "commands": {"distributed", "processes", "settings", "training", *_SHOWN},
}
"""By sub-package: the others that its modules may import."""


def imported(source: Path) -> Iterator[str]:
    """Sub-packages of the agent that a file imports anywhere, in functions too."""
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            continue
        for module in modules:
            package, *below = module.split(".")
            if package == "replay_agent" and below and below[0] in MAY_IMPORT:
                yield below[0]


def test_every_sub_package_has_its_place() -> None:
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} == set(MAY_IMPORT)
    assert [path.name for path in ROOT.glob("*.py")] == ["__init__.py"]


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_sub_package_imports_only_those_below_it(package: str) -> None:
    files = list((ROOT / package).rglob("*.py"))
    assert files
    found = {(str(file.relative_to(ROOT)), name) for file in files for name in imported(file)}
    assert {(file, name) for file, name in found if name not in MAY_IMPORT[package] | {package}} == set()


def test_arrows_have_no_cycle() -> None:
    placed: set[str] = set()
    while len(placed) < len(MAY_IMPORT):
        ready = {package for package, below in MAY_IMPORT.items() if package not in placed and below <= placed}
        assert ready, f"these import each other: {sorted(MAY_IMPORT.keys() - placed)}"
        placed |= ready
