"""The command `replay-reshard`, also available as `python -m replay_server.resharding`."""

from __future__ import annotations

import sys

from replay_proto.extras import needs_extras


def main() -> None:
    """Run the command; if libraries are missing, say what to install."""
    with needs_extras("replay-reshard", "server"):
        from replay_server.errors import FatalError

        try:
            from replay_server.resharding.command import run
        except FatalError as error:
            sys.exit(f"replay-reshard: {error}")
    sys.exit(run())


if __name__ == "__main__":
    main()
