"""Networks, learners and environments of one's own, which settings and actors find by name.

replay-train --env my_agent:make_env --network my_agent:Network --learner my_agent:QRDQN
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

MAIN: Final = "__main__"
"""The module of a program. Other processes cannot import it."""
NAME_PATTERN: Final = r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$"


class OwnPartError(ValueError):
    """A part cannot be found by its name, has no such name, or does not fit."""


def name_of(part: Any) -> str:
    """Return the name of a class or function at the top level of a module, as ``module:name``.

    Raises:
        OwnPartError: other processes could not find it there.
    """
    module, name = getattr(part, "__module__", None), getattr(part, "__qualname__", None)
    if not module or not name or "<" in name:
        raise OwnPartError(
            f"expected a class or a function at the top level of a module, where actors find it by its name; got "
            f"{part!r}"
        )
    return f"{module}:{name}"


def find(name: str, what: str) -> Any:
    """Return the part with a name.

    Raises:
        OwnPartError: there is none on this machine.
    """
    module, _, path = name.partition(":")
    try:
        found: Any = import_module(module)
        for attribute in path.split("."):
            found = getattr(found, attribute)
    except (ImportError, AttributeError) as error:
        hint = "move it to a module of its own" if module == MAIN else "install it here, or add it to PYTHONPATH"
        raise OwnPartError(f"{what} {name} cannot be found: {error}; {hint}") from error
    return found
