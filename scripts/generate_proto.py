"""Generates proto/replay_proto/v1 from proto/replay/v1, or checks that it is current.

    python scripts/generate_proto.py [--check]

Runs in the environment of scripts/proto-requirements.txt.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "proto" / "replay" / "v1"
GENERATED = ROOT / "proto" / "replay_proto" / "v1"
OUTPUTS = ("python_out", "grpc_python_out", "mypy_out", "mypy_grpc_out")


def generate(destination: Path) -> None:
    """Write the modules and type stubs of every .proto file to ``destination/replay_proto/v1``."""
    plugins = Path(sys.executable).parent
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"-Ireplay_proto/v1={SOURCES.relative_to(ROOT)}",
            *(f"--{output}={destination}" for output in OUTPUTS),
            *(str(source.relative_to(ROOT)) for source in sorted(SOURCES.glob("*.proto"))),
        ],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{plugins}{os.pathsep}{os.environ['PATH']}"},
        check=True,
        stderr=subprocess.DEVNULL if sys.stderr is None else None,
    )


def differences(fresh: Path) -> list[str]:
    """Return the names of generated files that are missing, superfluous or different from those in ``fresh``."""
    names = {path.name for folder in (fresh, GENERATED) for path in folder.glob("*_pb2*.py*") if path.is_file()}
    _, changed, missing = filecmp.cmpfiles(fresh, GENERATED, sorted(names), shallow=False)
    return sorted(changed + missing)


def main() -> int:
    """Generate the code in place or, with ``--check``, only compare it; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; fail when generated code is not current")
    if not parser.parse_args().check:
        generate(ROOT / "proto")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        stale = differences(Path(folder) / "replay_proto" / "v1")
    if stale:
        print(f"not what proto/replay/v1 generates: {', '.join(stale)}; run `make proto`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
