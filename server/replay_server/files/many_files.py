"""The limit on open files."""

from __future__ import annotations

import resource


def allow_many_files() -> None:
    """Raise this process's limit on file descriptors as far as allowed."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
