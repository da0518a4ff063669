"""Figures of the service, measured: `python -m benchmarks` prints them and writes docs/benchmarks.md."""
