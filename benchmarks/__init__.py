"""Benchmarks: `python -m benchmarks` (see docs/performance.md)."""
