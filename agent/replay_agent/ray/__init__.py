"""Replay servers, actors and a learner as actors of Ray.

    import replay_agent.ray

    client = replay_agent.ray.start("pong", shards=3, folder="/shared/pong")
    client = replay_agent.ray.connect("pong")       # in any process of the cluster
    replay_agent.ray.stop("pong")

Ray starts, places and restarts the processes. Rows never pass through it. `replay-train --ray` uses the same parts; see
docs/how-to/ray.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replay_agent.ray.service import PlacementError, ServiceError, connect, start, stop

__all__ = ["PlacementError", "ServiceError", "connect", "start", "stop"]


def __getattr__(name: str) -> Any:
    """Import a part on first use.

    Ray is an optional dependency, so this package must be importable without it. Ray's own processes also import the
    package, to find the classes of the actors.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.service"), name)
