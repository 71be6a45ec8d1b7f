"""The first half hour on a device: correctness, times, and the decisions that depend on them.

docs/benchmarks.md describes the command; `steps.py` contains the measurements, in order.
"""
