"""Tests of the benchmarks' baselines."""
