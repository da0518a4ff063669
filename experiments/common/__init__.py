"""Code shared by the experiments: command lines, progress, raw results and the server."""
