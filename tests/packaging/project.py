"""Paths of the project's parts, its metadata and its dependencies."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "replay_proto": ROOT / "proto" / "replay_proto",
    "replay_server": ROOT / "server" / "replay_server",
    "replay_client": ROOT / "client" / "replay_client",
    "replay_pytest": ROOT / "client" / "replay_pytest",
    "replay_agent": ROOT / "agent" / "replay_agent",
}
CONSTRAINTS = ROOT / "constraints.txt"


def metadata() -> dict[str, Any]:
    """The content of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def pinned() -> dict[str, str]:
    """Canonical names and versions in the constraints file."""
    lines = (line.split("==") for line in CONSTRAINTS.read_text("utf-8").splitlines())
    return {canonicalize_name(name, validate=True): version for name, version in lines}


def required_by(lines: Iterable[str]) -> set[str]:
    """Canonical names of these requirements and, as far as they are installed, of their transitive dependencies."""
    found: set[tuple[str, str]] = set()
    pending = [(Requirement(line), "") for line in lines]
    while pending:
        requirement, extra = pending.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        for wanted in ("", *requirement.extras):
            key = (canonicalize_name(requirement.name), wanted)
            if key not in found:
                found.add(key)
                pending += [(Requirement(line), wanted) for line in _required_by_installed(requirement.name)]
    return {name for name, _ in found}


def _required_by_installed(name: str) -> list[str]:
    try:
        return requires(name) or []
    except PackageNotFoundError:  # Ray is not installed for the tests.
        return []
