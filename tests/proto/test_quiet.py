"""Servers turn off gRPC's logging before they import gRPC, which reads the setting only then."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import importlib, sys
importlib.import_module(sys.argv[1])
assert "grpc" not in sys.modules, "imported before `main` could turn off its logging"
"""


@pytest.mark.parametrize("module", ["replay_server.__main__", "replay_agent.commands.replay_train"])
def test_grpc_is_imported_after_its_logging_is_turned_off(module: str) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM, module], check=True)
