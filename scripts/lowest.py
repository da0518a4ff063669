"""Makes an environment with the oldest dependencies that pyproject.toml allows: `python -m scripts.lowest FOLDER`.

Tools for tests have the versions of constraints.txt as far as the old dependencies permit. So has torch: its oldest
versions are gigabytes of CUDA libraries.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

from packaging.utils import canonicalize_name

from scripts.install import options_of, pip_settings

ROOT: Final = Path(__file__).resolve().parents[1]
UV: Final = Path(sys.executable).with_name("uv")
EXTRAS: Final = ("server", "cli", "agent", "atari", "arrow", "bfloat16", "sb3", "sb3-contrib")
PYTHON: Final = "3.11"


def main() -> None:
    """Make the environment in the folder, which must not exist."""
    folder = Path(sys.argv[1])
    venv.create(folder, with_pip=True, symlinks=True)
    lowest, others = folder / "lowest.txt", folder / "others.txt"
    pins = ROOT.joinpath("constraints.txt").read_text("utf-8").splitlines()
    others.write_text("\n".join(line for line in pins if line.startswith("torch==")), "utf-8")
    extras = [part for extra in EXTRAS for part in ("--extra", extra)]
    resolve = ("--resolution", "lowest-direct", "--python-version", PYTHON, "--override", others)
    options = ("--quiet", "--no-header", "--no-annotate", "--system-certs", *options_of(pip_settings()))
    files = ("--output-file", lowest, ROOT / "pyproject.toml")
    subprocess.run((UV, "pip", "compile", *options, *resolve, *files, *extras), check=True)
    resolved = {name_of(line) for line in lowest.read_text("utf-8").splitlines()}
    others.write_text("\n".join(pin for pin in pins if name_of(pin) not in resolved), "utf-8")
    install = (sys.executable, ROOT / "scripts" / "install.py", "--python", folder / "bin" / "python")
    chosen = ("--constraint", lowest, "--constraint", others, "--build-constraint", ROOT / "constraints.txt")
    project = f"{ROOT}[{','.join(EXTRAS)}]"
    subprocess.run((*install, *chosen, "--editable", project, "--group", "dev"), check=True)


def name_of(pin: str) -> str:
    """Return the package of a line such as ``numpy==2.0.0``."""
    return canonicalize_name(pin.partition("==")[0].strip())


if __name__ == "__main__":
    main()
