"""Front ends that convert model files to graphs, and passes that improve graphs."""

from __future__ import annotations
