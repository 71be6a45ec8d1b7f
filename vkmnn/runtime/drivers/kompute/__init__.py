"""The driver on Kompute, the Python package `kp`; docs/kompute.md says how to build that."""

from __future__ import annotations
