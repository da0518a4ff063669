"""A worker of pytest-xdist, forked from a process that has imported all tests.

    pytest --tx '4*popen//python=.venv/bin/python -m tests.support.worker' --dist worksteal

Importing the tests and the libraries that they use takes 8 s of CPU time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import ModuleType

from tests.support.warm_program import WORKER, warm_program


def load_tests() -> Callable[[], None]:
    """Import all tests, and return a function that runs the program passed to ``python -c``."""
    import pytest  # not for other programs, because commands behave differently when it is loaded

    pytest.main(["--collect-only", "--quiet", "--quiet", "-p", "no:cacheprovider"])

    def run() -> None:
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(sys.argv[-1], vars(main))

    return run


if __name__ == "__main__":
    given, shown, logged = range(3)
    sys.exit(warm_program(WORKER).start(sys.argv[1:], os.environ, given, logged, shown).wait())
