"""The command `replay`: inspects, exports, empties, drops and checkpoints the tables of a server.

    replay stats --watch --server HOST:PORT

The server's address can also be given in REPLAY_SERVER; `replay_client.security` lists the variables for
a token and TLS.
"""

from __future__ import annotations

import sys

from replay_proto.starting import exits_on_ctrl_c, needs_extras


def main() -> None:
    """Run the command; if libraries are missing, say what to install."""
    with needs_extras("replay", "cli"):
        with exits_on_ctrl_c():
            from replay_client.cli.app import run

        sys.exit(run())
