"""Installs packages with uv, using pip's configuration, which uv itself does not read.

.venv/bin/python scripts/install.py --python .venv/bin/python PACKAGE
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


def main() -> int:
    """Run uv with the given arguments, and return its exit status."""
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv), "pip", "install", "--quiet", "--system-certs", *options_of(pip_settings()), *sys.argv[1:]]
    return subprocess.run(command, check=False).returncode


def options_of(settings: dict[str, str]) -> Iterator[str]:
    """Yield uv's options for pip's settings."""
    if "index-url" in settings:
        yield f"--default-index={settings['index-url']}"
    for place in settings.get("find-links", "").split():
        yield f"--find-links={place}"


def pip_settings() -> dict[str, str]:
    """Return pip's settings by name; environment variables take precedence over files."""
    listing = [sys.executable, "-m", "pip", "config", "list"]
    lines = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.splitlines()
    given = [line.partition("=") for line in sorted(lines, key=lambda line: line.startswith(":env:"))]
    return {name.rpartition(".")[2]: str(ast.literal_eval(value)) for name, _, value in given}


if __name__ == "__main__":
    sys.exit(main())
