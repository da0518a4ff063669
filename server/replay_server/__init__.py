"""The replay service: prioritized replay tables behind gRPC."""

from importlib.metadata import version

__version__ = version("replay-service")
