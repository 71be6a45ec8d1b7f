"""The first half hour on a device: what is right, what takes how long, and what that changes.

docs/benchmarks.md describes the command; `steps.py` holds what is measured, in order.
"""
