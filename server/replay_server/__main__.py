"""The command `replay-server`, also available as `python -m replay_server`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from replay_proto.starting import exit_on_sigterm, exits_on_ctrl_c, needs_extras, quiet_grpc

if TYPE_CHECKING:
    from replay_server.process.settings import ServerSettings


def main() -> None:
    """Parse the command line and run the server."""
    exit_on_sigterm(0)
    with exits_on_ctrl_c(0):
        _main()


def _main() -> None:
    from replay_server.files.standard_error import open_closed_streams

    open_closed_streams()
    quiet_grpc()
    # Import lazily to answer fast: importing the settings takes 0.3 s, the server 1 s.
    with needs_extras("replay-server", "server"):
        from replay_server.process.settings import read_command_line

        settings = read_command_line(sys.argv[1:])
        from replay_server.errors import FatalError

        try:
            run = load_server()
        except FatalError as error:
            sys.exit(f"replay-server: {error}")
    run(settings)


def load_server() -> Callable[[ServerSettings], None]:
    """Load the server, and return its `run` function."""
    from replay_server.process.garbage import loading

    with loading():
        from replay_server.process.main import run
    return run


if __name__ == "__main__":
    main()
