"""The audit of pinned dependencies, with a fake auditor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.project import ROOT

FINE = {"name": "numpy", "version": "2.0", "vulns": []}
BAD = {"name": "torch", "version": "2.0", "vulns": [{"id": "CVE-1", "fix_versions": ["2.1"]}]}
SKIPPED = {"name": "uvloop", "skip_reason": "Dependency not found"}


def audited(folder: Path, auditor: str) -> subprocess.CompletedProcess[str]:
    """Run the audit with this program as pip-audit."""
    (folder / "pip_audit.py").write_text(auditor)
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "audit.py")],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("answers", "status", "says"),
    [
        ([FINE, SKIPPED], 0, "audited 1 of 2 pinned versions: 0 known vulnerabilities"),
        ([FINE, BAD], 1, "torch 2.0: CVE-1, fixed in 2.1\naudited 2 of 2 pinned versions: 1 known"),
        ([SKIPPED], 0, "audit skipped"),
    ],
)
def test_what_the_database_answers_decides(
    tmp_path: Path, answers: list[dict[str, object]], status: int, says: str
) -> None:
    done = audited(tmp_path, f"print({json.dumps(json.dumps({'dependencies': answers}))})")
    assert (done.returncode, done.stderr) == (status, "")
    assert says in done.stdout


def test_a_database_out_of_reach_is_no_failure_and_is_told(tmp_path: Path) -> None:
    done = audited(tmp_path, "raise ConnectionError('no route to somewhere.example')")
    assert done.returncode == 0
    assert "audit skipped" in done.stdout
    assert "somewhere" not in done.stdout + done.stderr


def test_arguments_that_the_auditor_does_not_know_are_a_failure(tmp_path: Path) -> None:
    done = audited(tmp_path, "import sys; sys.exit(2)")
    assert done.returncode == 1
    assert "expected pip-audit to understand its arguments" in done.stderr
