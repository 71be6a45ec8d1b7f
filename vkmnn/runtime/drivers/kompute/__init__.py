"""The driver on Kompute, the Python package `kp`; see docs/kompute.md for building it."""

from __future__ import annotations
