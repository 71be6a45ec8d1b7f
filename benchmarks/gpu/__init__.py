"""The first half hour on a device: correctness, times, and the decisions that depend on them.

docs/benchmarks-inside.md describes the command; `step.py` has the plan, and `language.py`,
`steps.py` and `peers.py` the measurements.
"""
