"""Checks the versions pinned in constraints.txt for known vulnerabilities, within a time limit.

python scripts/audit.py

Exits with 1 if it finds any, with 0 if not. If the database is unreachable, it says so and exits with 0. Needs
pip-audit.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

CONSTRAINTS = Path(__file__).resolve().parents[1] / "constraints.txt"
SOCKET_TIMEOUT_S = 5
TIMEOUT_S = 60
USAGE_ERROR = 2
COMMAND = [
    *(sys.executable, "-m", "pip_audit", "--requirement", str(CONSTRAINTS), "--no-deps", "--disable-pip"),
    *("--format", "json", "--progress-spinner", "off", "--timeout", str(SOCKET_TIMEOUT_S)),
]


def main() -> int:
    """Run the audit, and print the result."""
    answers = ask()
    asked = [each for each in answers if "skip_reason" not in each]
    if not asked:
        print("audit skipped: the database of vulnerabilities cannot be reached from here")
        return 0
    found = [(each, problem) for each in asked for problem in each["vulns"]]
    for package, problem in found:
        fixed = ", ".join(problem["fix_versions"]) or "no version yet"
        print(f"{package['name']} {package['version']}: {problem['id']}, fixed in {fixed}")
    print(f"audited {len(asked)} of {len(answers)} pinned versions: {len(found)} known vulnerabilities")
    return 1 if found else 0


def ask() -> list[dict[str, Any]]:
    """Return pip-audit's answer for each pinned version, or an empty list if pip-audit cannot connect."""
    try:
        done = subprocess.run(COMMAND, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return []
    if done.returncode == USAGE_ERROR or "No module named" in done.stderr:
        sys.exit(f"expected pip-audit to understand its arguments, got:\n{done.stderr}")
    try:
        answers: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except ValueError:
        return []
    return answers


if __name__ == "__main__":
    sys.exit(main())
