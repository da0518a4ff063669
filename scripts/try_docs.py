"""Runs every command and program of the documentation: `make try-docs`, or `python -m scripts.try_docs [PAGE ...]`.

Each block is started in a fresh process, as a user would start it; see `scripts.pages`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from replay_proto.command_line import new_app, run_app

from scripts.pages import PAGES, ROOT, namespaces

NO_NAMESPACE: Final = 77
"""Exit status if this machine does not allow namespaces; test harnesses use it for `skipped`."""


def main(*pages: Path) -> int:
    """Run pages; returns 0, 1 if a block failed, or `NO_NAMESPACE`.

    Args:
        *pages: pages to run; all if absent.
    """
    chosen = [page.resolve() for page in pages] or PAGES
    found = subprocess.run([*namespaces(), "true"], capture_output=True, text=True, check=False)
    if found.returncode:
        print(f"no network of its own can be made here: {found.stderr.strip()}", file=sys.stderr)
        return NO_NAMESPACE
    command = [*namespaces(), sys.executable, "-m", "scripts.pages", *map(str, chosen)]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(run_app(new_app("scripts.try_docs", __doc__, main)))
