"""What the experiments share: command lines, progress, raw results and the server."""
