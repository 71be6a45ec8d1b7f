"""Fault injection: every Vulkan call of a session fails once, in every way that it may.

`python -m vkmnn_suite.faults MODEL` prints the outcome; `sweep` is for tests.
"""
