"""The command `replay`: look at the tables of a server and into them, empty them, drop them.

replay stats --watch --server HOST:PORT

The server's address may also stand in the variable REPLAY_SERVER; a token and the files of TLS stand in those that
`replay_client.security` lists.
"""

from __future__ import annotations

import sys

_NEEDED = ("typer", "rich", "matplotlib")


def main() -> None:
    """Run the command; it says what to install where its own libraries are missing."""
    try:
        from replay_client.cli.app import run

        sys.exit(run())
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _NEEDED:
            raise
        sys.exit(f"replay: {error.name} is not installed; pip install 'replay-service[cli]'")
