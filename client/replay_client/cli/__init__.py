"""The command `replay`: inspects, empties, drops and checkpoints the tables of a server.

replay stats --watch --server HOST:PORT

The server's address may also stand in the variable REPLAY_SERVER; a token and the files of TLS stand in those that
`replay_client.security` lists.
"""

from __future__ import annotations

import sys

from replay_proto.extras import needs_extras


def main() -> None:
    """Run the command; if libraries are missing, say what to install."""
    with needs_extras("replay", "cli"):
        from replay_client.cli.app import run

        sys.exit(run())
