"""Builds a release, checks it in fresh environments of every supported Python, and commits and tags it.

.venv/bin/python -m scripts.release 0.3.0     # also commits and tags; dist/ has the archives and the notes
.venv/bin/python -m scripts.release --check   # only builds and checks the present version
"""

from __future__ import annotations

import datetime
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from scripts.install import options_of, pip_settings

ROOT: Final = Path(__file__).resolve().parents[1]
DIST: Final = ROOT / "dist"
PYTHONS: Final = ("3.11", "3.12", "3.13")
EXTRAS: Final = "server,cli"
UNRELEASED: Final = "## [Unreleased]"
UV: Final = Path(sys.executable).with_name("uv")
SMOKE: Final = """
import numpy as np
from replay_client import Column, LocalServer

with LocalServer() as server, server.client() as client:
    table = client.create_table("smoke", columns={"obs": Column("float32", 4)}, capacity=100)
    table.insert({"obs": np.zeros((50, 4), np.float32)})
    with table.sampler(16) as sampler:
        for _ in range(10):
            batch = next(sampler)
            sampler.update_priorities(batch, np.arange(16))
    assert table.stats().updated > 0
"""
"""What an installed release must be able to do: serve a table to a client."""


class ReleaseError(Exception):
    """The release cannot be made; the message says why."""


def main() -> int:
    """Release the given version, or check the present one."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        if sys.argv[1] == "--check":
            check(build())
        else:
            release(sys.argv[1])
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def release(version: str) -> None:
    """Set the version, build, check, commit and tag. If something fails, the files are as before.

    Raises:
        ReleaseError: the tree has changes, the version exists or has no entries, or a check failed.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ReleaseError(f"expected a version such as 0.3.0, got {version}")
    if output("git", "status", "--porcelain"):
        raise ReleaseError("the working tree has changes; commit or stash them first")
    if output("git", "tag", "--list", f"v{version}"):
        raise ReleaseError(f"the tag v{version} exists")
    notes = entries(ROOT.joinpath("CHANGELOG.md").read_text("utf-8"))
    try:
        for name, change in changes(version, datetime.date.today().isoformat()).items():
            file = ROOT / name
            file.write_text(change(file.read_text("utf-8")), "utf-8")
        check(build())
    except BaseException:
        run("git", "checkout", "--quiet", "--", ".")
        raise
    notes_file = DIST / f"notes-{version}.md"
    notes_file.write_text(notes, "utf-8")
    run("git", "commit", "--quiet", "--all", "--message", f"Version {version}")
    run("git", "tag", "--annotate", f"v{version}", "--file", str(notes_file), "--cleanup", "whitespace")
    print(f"committed and tagged v{version}; publish {DIST} and push the tag")


def entries(changelog: str) -> str:
    """Return the unreleased entries of the changelog, which become the release's notes.

    Raises:
        ReleaseError: there are none.
    """
    _, found, rest = changelog.partition(f"{UNRELEASED}\n")
    notes = rest.partition("\n## ")[0].strip()
    if not found or not notes:
        raise ReleaseError(f"CHANGELOG.md has no entries below {UNRELEASED!r}")
    return f"{notes}\n"


def changes(version: str, date: str) -> dict[str, Callable[[str], str]]:
    """Return how each file that has the version is changed."""

    def lines(**values: str) -> Callable[[str], str]:
        """Set ``name: value`` lines of YAML."""
        return lambda text: functools.reduce(
            lambda changed, name: _set(changed, rf"^{name}: .*$", f"{name}: {values[name]}"), values, text
        )

    return {
        "README.md": lambda text: _set(text, r"\*\*Version [\d.]+\*\*", f"**Version {version.rpartition('.')[0]}**"),
        "pyproject.toml": lambda text: _set(text, r'^version = ".*"$', f'version = "{version}"'),
        "deploy/helm/replay/Chart.yaml": lines(version=version, appVersion=f'"{version}"'),
        "CITATION.cff": lines(version=version, **{"date-released": date}),
        "CHANGELOG.md": lambda text: text.replace(UNRELEASED, f"{UNRELEASED}\n\n## [{version}] - {date}", 1),
    }


def _set(text: str, pattern: str, line: str) -> str:
    changed, count = re.subn(pattern, line, text, count=1, flags=re.MULTILINE)
    if not count:
        raise ReleaseError(f"no line matches {pattern!r}")
    return changed


def build() -> list[Path]:
    """Build the sdist, and the wheel from it, in an empty `dist`."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(UV, "build", "--quiet", "--system-certs", *options_of(pip_settings()), "--out-dir", DIST)
    DIST.joinpath(".gitignore").unlink(missing_ok=True)
    archives = sorted(DIST.iterdir())
    print("built", *(f"{archive.name} ({archive.stat().st_size / 1e6:.1f} MB)" for archive in archives))
    return archives


def check(archives: list[Path]) -> None:
    """Install every archive in a fresh environment of each Python, and serve a table with it.

    Raises:
        ReleaseError: a Python is missing, or an archive does not work.
    """
    version = tomllib.loads(ROOT.joinpath("pyproject.toml").read_text("utf-8"))["project"]["version"]
    for python in PYTHONS:
        for archive in archives:
            with tempfile.TemporaryDirectory() as folder:
                environment = Path(folder, "environment")
                run(UV, "venv", "--quiet", "--no-python-downloads", "--python", python, environment)
                program = environment / "bin" / "python"
                pins = ("--constraint", ROOT / "constraints.txt", "--build-constraint", ROOT / "constraints.txt")
                install = ROOT / "scripts" / "install.py"
                run(sys.executable, install, "--python", program, *pins, f"{archive}[{EXTRAS}]")
                told = output(environment / "bin" / "replay-server", "--version", cwd=folder)
                if told != f"replay-server {version}":
                    raise ReleaseError(f"expected version {version} of {archive.name}, got {told!r}")
                run(program, "-c", SMOKE, cwd=folder)
            print(f"Python {python}: {archive.name} works")


def run(*command: str | Path, cwd: str | Path = ROOT) -> None:
    """Run a command.

    Raises:
        ReleaseError: it failed; the message has its output.
    """
    output(*command, cwd=cwd)


def output(*command: str | Path, cwd: str | Path = ROOT) -> str:
    """Run a command, and return what it prints.

    Raises:
        ReleaseError: it failed; the message has its output.
    """
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(command, cwd=cwd, env=outside, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
