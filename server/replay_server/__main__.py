"""The command `replay-server`, which is also `python -m replay_server`."""

from replay_server.loading import loading

with loading():
    from replay_server.main import main

if __name__ == "__main__":
    main()
