"""Allowed imports between packages and of libraries, checked in the sources without running them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.packaging.project import PACKAGES

MAY_IMPORT = {
    "replay_proto": {"replay_proto"},
    "replay_server": {"replay_server", "replay_proto"},
    "replay_client": {"replay_client", "replay_proto"},
    "replay_pytest": {"replay_pytest", "replay_client"},
    "replay_agent": {"replay_agent", "replay_client", "replay_proto"},
}
ONLY_IN = {
    ("replay_proto", "torch"): set[str](),
    ("replay_proto", "gymnasium"): set[str](),
    ("replay_proto", "numba"): set[str](),
    ("replay_proto", "cyclopts"): {"command_line.py", "setting_sources.py"},
    ("replay_proto", "pydantic"): {"access", "command_line.py"},
    ("replay_proto", "opentelemetry"): {"tracing.py"},
    ("replay_server", "opentelemetry"): set[str](),
    ("replay_client", "opentelemetry"): set[str](),
    ("replay_server", "torch"): set[str](),
    ("replay_server", "gymnasium"): set[str](),
    ("replay_client", "torch"): {
        "_learning/tensors.py",
        "aio/tensors.py",
        "sb3",
        "sb3_contrib.py",
        "sync/tensors.py",
        "torch.py",
        "torchrl.py",
    },
    ("replay_client", "tensordict"): {"torchrl.py"},
    ("replay_client", "torchrl"): set[str](),
    ("replay_client", "tianshou"): {"tianshou.py"},
    ("replay_client", "minari"): {"cli", "minari.py"},
    ("replay_client", "pyarrow"): {"aio/table.py", "sync/arrow.py", "sync/table.py"},
    ("replay_client", "jax"): {"jax.py"},
    ("replay_client", "stable_baselines3"): {"sb3"},
    ("replay_client", "sb3_contrib"): {"sb3_contrib.py"},
    ("replay_client", "gymnasium"): {"gymnasium.py", "minari.py", "sb3", "spaces.py"},
    ("replay_client", "numba"): set[str](),
    ("replay_client", "matplotlib"): {"cli"},
    ("replay_client", "plotext"): {"cli"},
    ("replay_client", "textual"): {"cli"},
    ("replay_client", "rich"): {"cli", "sync/progress.py"},
    ("replay_client", "cyclopts"): {"cli"},
}
"""Modules or direct subfolders that may import a library, by package and library."""


def imported(source: Path) -> Iterator[str]:
    """Top-level names of all modules that a file imports, including inside functions."""
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            assert node.level == 0, f"{source}:{node.lineno}: a relative import"
            yield node.module.partition(".")[0]


@cache
def imports(package: str) -> list[tuple[Path, str]]:
    """Every file of a package (relative path), with every top-level name that it imports."""
    folder = PACKAGES[package]
    return [(file.relative_to(folder), name) for file in sorted(folder.rglob("*.py")) for name in imported(file)]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_those_of_ours_that_it_may_know(package: str) -> None:
    found = imports(package)
    assert found
    assert [(str(file), name) for file, name in found if name in PACKAGES.keys() - MAY_IMPORT[package]] == []


@pytest.mark.parametrize(("package", "library"), ONLY_IN)
def test_a_library_is_imported_only_where_it_belongs(package: str, library: str) -> None:
    allowed = ONLY_IN[package, library]
    importing = [file for file, name in imports(package) if name == library]
    importers = {str(file) for file in importing if not {file.parts[0], str(file)} & allowed}
    assert importers == set()


UNSAFE_MODULES = {"cPickle", "cloudpickle", "dill", "marshal", "pickle", "shelve", "yaml"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__"}
UNSAFE_METHODS = {("np", "load"), ("numpy", "load"), ("torch", "load"), ("os", "system")}


def unsafe_calls(source: Path) -> list[int]:
    """Lines with calls that execute, or may execute, code from data."""
    lines = []
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in UNSAFE_CALLS:
                lines.append(node.lineno)
            if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
                lines += [node.lineno] * ((called.value.id, called.attr) in UNSAFE_METHODS)
    return lines


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_is_unpickled_or_evaluated(package: str) -> None:
    assert [(str(file), name) for file, name in imports(package) if name in UNSAFE_MODULES] == []
    files = PACKAGES[package].rglob("*.py")
    assert {str(file): lines for file in files if (lines := unsafe_calls(file))} == {}


def test_what_runs_code_is_found(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text("eval('1')\nre.compile('x')\nnp.load('x')\ntorch.save('x')\n")
    assert unsafe_calls(source) == [1, 3]


@pytest.mark.parametrize("package", PACKAGES)
def test_the_roots_are_folders_and_not_packages(package: str) -> None:
    assert PACKAGES[package].is_dir()
    assert not (PACKAGES[package].parent / "__init__.py").exists()
