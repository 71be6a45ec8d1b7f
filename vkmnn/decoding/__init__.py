"""Sequences of runs: caches that grow in place, sampling on the device, batched steps."""
