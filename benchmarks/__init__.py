"""Benchmarks of the service: `python -m benchmarks` prints the results and writes docs/project/benchmarks.md."""
