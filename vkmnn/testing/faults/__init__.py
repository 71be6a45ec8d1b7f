"""Fault injection: every Vulkan call of a session fails once, in every way that it may.

`python -m vkmnn.testing.faults MODEL` prints what came of it; `sweep` is for tests.
"""
