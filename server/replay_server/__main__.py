"""Makes `python -m replay_server` the command `replay-server`."""

from replay_server.main import main

main()
