"""Checks that the libraries for optional parts of this package are installed."""

from __future__ import annotations

from importlib.util import find_spec

from replay_client.errors import MissingExtraError


def check_extra(extra: str, *modules: str) -> None:
    """Check that the modules of an extra are installed, without loading them; the error says how to install them."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise MissingExtraError(f"{', '.join(missing)} not installed; in a clone, run: pip install '.[{extra}]'")
