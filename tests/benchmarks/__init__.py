"""Tests of what benchmarks compare with."""
