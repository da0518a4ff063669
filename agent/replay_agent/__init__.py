"""A Double DQN trainer that learns through the replay service."""

from importlib.metadata import version

__version__ = version("replay-service")
