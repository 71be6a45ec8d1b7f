"""Front ends that turn model files into graphs, and the passes that improve graphs."""

from __future__ import annotations
